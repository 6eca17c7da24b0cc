package conformance

import (
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// answer is a server. It sends one RateLimit field, and records when requests arrive.
type answer struct {
	field string
	times []time.Time
}

func (a *answer) RoundTrip(r *http.Request) (*http.Response, error) {
	a.times = append(a.times, time.Now())
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Ratelimit": {a.field}},
		Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// wait returns how long a client waits once it has received the field.
func wait(t *testing.T, field string) time.Duration {
	l := ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil))
	a := &answer{field: field}
	transport, err := httplimit.NewTransport(a, ratelimit.Map(l, httplimit.TargetHost), nil)
	require.NoError(t, err)
	for range 2 {
		r, err := http.NewRequest("GET", "http://a/", nil)
		require.NoError(t, err)
		_, err = transport.RoundTrip(r)
		require.NoError(t, err)
	}
	return a.times[1].Sub(a.times[0])
}

// expected computes the client's wait with the reference parser: as long as some item has r=0.
func expected(field string) (longest time.Duration) {
	list, err := httpsfv.UnmarshalList([]string{field})
	if err != nil {
		return 0
	}
	for _, member := range list {
		it, ok := member.(httpsfv.Item)
		if !ok || !isName(it.Value) {
			return 0 // an inner list or a number is not a policy, and makes the field malformed
		}
		left, hasR := it.Params.Get("r")
		seconds, hasT := it.Params.Get("t")
		n, isInt := left.(int64)
		t, isInt2 := seconds.(int64)
		if hasR && hasT && isInt && isInt2 && n == 0 && t > 0 {
			longest = max(longest, time.Duration(t)*time.Second)
		}
	}
	return longest
}

func isName(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case httpsfv.Token:
		return true
	}
	return false
}

// A client reads fields as a parser of structured fields does, even malformed ones.
func TestTransportReadsStructuredFields(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	pieces := []string{`"a"`, `"b\"c"`, `"d\\"`, "tok", "*t", ";r=0", ";r=3", ";t=7", ";t=20", "; t=9", ";pk=:YWI=:", ";x", ";y=?1", ";z=1.5", `;s="q;r=0"`,
		", ", ",", " ", "\t", ";", "=", `"`, "?0", ":", "-1", ";r=-0", ";t=0", "é", ";R=0", ";t=1234567890123456", ";u=tok/x:y",
		";d=@1754049600", ";d=@-5", ";d=@1.5", ";d=@", `;e=%"caf%c3%a9"`, `;e=%"%C3%A9"`, `;e=%"%c3"`, `;e=%"`, "%", "@5", ";z=1.2345", ";z=1.", ";z=-"}
	fields := []string{`"a";r=0;t=5`, `"a";r=0;t=5,`, `a;r=0;t=5 , "b";r=0;t=6`, `"a";t=5;r=0;t=8`, `("a" "b");r=0;t=5`, ``}
	for range 2000 {
		f := []string{"", `"a"`, `"a";r=0`, `"a";r=0;t=4`}[random.IntN(4)]
		for range random.IntN(6) {
			f += pieces[random.IntN(len(pieces))]
		}
		fields = append(fields, f)
	}
	synctest.Test(t, func(t *testing.T) {
		waited := 0
		for _, f := range fields {
			want := expected(f)
			require.Equal(t, want, wait(t, f), "%q", f)
			if want > 0 {
				waited++
			}
		}
		require.Greater(t, waited, 20, "some fields are good")
	})
}
