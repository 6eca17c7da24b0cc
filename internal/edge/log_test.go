package edge

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// written returns a logger, and the buffer with its lines. The lines have no time.
func written() (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})), &b
}

func TestOneLineASecondHasTheNumberOfOmittedOnes(t *testing.T) {
	to, lines := written()
	var l throttledLog
	for _, at := range []time.Duration{0, 1, 999_999_999, 1e9, 1e9 + 1, 2e9 - 1, 5e9, 6e9 - 1, 6e9} {
		l.line(context.Background(), to, noon.Add(at), slog.LevelWarn, "m", "at", at)
	}
	assert.Equal(t, `level=WARN msg=m at=0s unlogged=0
level=WARN msg=m at=1s unlogged=2
level=WARN msg=m at=5s unlogged=2
level=WARN msg=m at=6s unlogged=1
`, lines.String())
}

// If a clock is set back by more than a second, the log must not stay silent until the clock has caught up.
func TestClockSetBackDoesNotSilenceTheLog(t *testing.T) {
	to, lines := written()
	var l throttledLog
	for _, at := range []time.Duration{0, -1, -time.Hour, -time.Hour + 1, -time.Hour + time.Second} {
		l.line(context.Background(), to, noon.Add(at), slog.LevelError, "m", "at", at)
	}
	assert.Equal(t, `level=ERROR msg=m at=0s unlogged=0
level=ERROR msg=m at=-1h0m0s unlogged=1
level=ERROR msg=m at=-59m59s unlogged=1
`, lines.String())
}

func TestCrowdAtOneInstantWritesOneLine(t *testing.T) {
	to, lines := written()
	var l throttledLog
	var crowd sync.WaitGroup
	for range 100 {
		crowd.Go(func() { l.line(context.Background(), to, noon, slog.LevelWarn, "m") })
	}
	crowd.Wait()
	assert.Equal(t, 1, strings.Count(lines.String(), "msg=m"))
	l.line(context.Background(), to, noon.Add(time.Second), slog.LevelWarn, "m")
	assert.Equal(t, 2, strings.Count(lines.String(), "msg=m"))
}

func TestNilLoggerIsTheDefaultOne(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	to, lines := written()
	slog.SetDefault(to)
	var l throttledLog
	l.line(context.Background(), nil, noon, slog.LevelWarn, "m")
	assert.Equal(t, "level=WARN msg=m unlogged=0\n", lines.String())
}
