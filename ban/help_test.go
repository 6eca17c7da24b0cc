package ban_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/internal/dev/model"
)

const (
	ms = time.Millisecond
	s  = time.Second
)

// engine is a limiter whose decisions and errors a test sets.
type engine = model.Engine

var (
	allows, fails = model.Allows, model.Fails
	onClock       = model.OnClock
	remaining     = model.Remaining
)

func limiterWith(t testing.TB, limit ratelimit.Limit, opts ratelimit.Options[string]) *ratelimit.Keyed[string] {
	t.Helper()
	l, err := ratelimit.New(limit, &opts)
	require.NoError(t, err)
	return l
}

func chainOf(t testing.TB, limiters ...ratelimit.Reserver[string]) *chain.Limiter[string] {
	t.Helper()
	c, err := chain.New(limiters...)
	require.NoError(t, err)
	return c
}

func itself(k string) (string, error) { return k, nil }
