package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/examples/servers/store"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
)

// Each process runs the test's program, and that runs the example.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-worker" {
		main()
		return
	}
	os.Exit(m.Run())
}

var line = regexp.MustCompile(`(?m)^ *(\w+) +(\d+) +(\d+) +(\d+) *$`)

// admitted reads the table. It returns each process's admissions, and the sum.
func admitted(t *testing.T, out string) (each []int, total int) {
	for _, row := range line.FindAllStringSubmatch(out, -1) {
		n, err := strconv.Atoi(row[2])
		require.NoError(t, err)
		if row[1] == "total" {
			total = n
		} else {
			each = append(each, n)
		}
	}
	return each, total
}

func bounded(t *testing.T, out string) {
	each, total := admitted(t, out)
	require.Len(t, each, processes, out)
	require.Equal(t, total, each[0]+each[1]+each[2], out)
	_, figure, found := bytes.Cut([]byte(out), []byte(" = "))
	require.True(t, found, out)
	most, err := strconv.ParseFloat(string(bytes.TrimSpace(figure)), 64)
	require.NoError(t, err)
	require.LessOrEqual(t, float64(total), most+0.05, "more than the bound, which is printed to a tenth:\n%s", out)
	require.Positive(t, total, out)
}

// share runs processes until they have spent the burst. A machine may stop during a run, so it may need several.
func share(t *testing.T, addr string, embedded bool) string {
	for lasts := 500 * time.Millisecond; ; lasts *= 3 {
		var out bytes.Buffer
		require.NoError(t, run(context.Background(), addr, embedded, lasts, &out))
		bounded(t, out.String())
		if _, total := admitted(t, out.String()); total >= limit.Burst {
			return out.String()
		}
		require.Less(t, lasts, 20*time.Second, out.String())
	}
}

func TestThreeProcessesShareTheLimit(t *testing.T) {
	for _, embedded := range []bool{false, true} {
		t.Run(fmt.Sprintf("embedded=%t", embedded), func(t *testing.T) {
			if !embedded {
				redistest.Program(t)
			}
			require.Equal(t, embedded, strings.Contains(share(t, "", embedded), "miniredis"), "it says what it runs on")
		})
	}
}

func TestTheAddressIsUsed(t *testing.T) {
	s, err := store.Start(true)
	require.NoError(t, err)
	defer s.Close()
	require.Contains(t, share(t, s.Addr(), false), "Redis: "+s.Addr())
}

func TestFailuresArePrinted(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), "127.0.0.1:1", false, time.Second, &out))
	require.Contains(t, out.String(), "the last failure: ")
	_, total := admitted(t, out.String())
	require.Zero(t, total)
}
