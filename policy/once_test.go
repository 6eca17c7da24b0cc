package policy_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/sqllimit"
)

// noServer is a database refusing connections.
type noServer struct{}

func (noServer) Connect(context.Context) (driver.Conn, error) {
	return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
}

func (noServer) Driver() driver.Driver { return nil }

// TestARequestIsReportedOnceWhileTheStoreIsDown gives both policies the same
// hook. Only the stand-in's decision is reported. The hook may keep the rules.
func TestARequestIsReportedOnceWhileTheStoreIsDown(t *testing.T) {
	db := sql.OpenDB(noServer{})
	defer db.Close()
	set := parsed(t, "rules:\n- {name: a, key: user, limit: fixed-window 9/h}\n- {name: b, limit: fixed-window 90/h}")
	for _, reuse := range []bool{false, true} {
		var seen []policy.Decision
		opts := policy.Options{ReuseRules: reuse, OnDecision: func(d policy.Decision) { seen = append(seen, d) }}
		local, err := policy.New(set, &opts)
		require.NoError(t, err)
		opts.StandIn = local
		opts.Engine = func(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
			return sqllimit.New(db, b.Limit, &sqllimit.Options{Name: b.Name})
		}
		shared, err := policy.New(set, &opts)
		require.NoError(t, err)
		l, err := failover.New[policy.Request](shared, local, &failover.Options{Timeout: time.Minute, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		require.NoError(t, err)
		for i := range 12 {
			d, err := l.Take(t.Context(), policy.Attributes{"user": "ann"}, 1)
			require.NoError(t, err)
			require.Len(t, seen, i+1)
			assert.Equal(t, d.Allowed, seen[i].Decision.Allowed)
			require.NoError(t, seen[i].Err)
		}
		seen = nil
		_, err = shared.Take(t.Context(), policy.Attributes{"user": "ann"}, 1)
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.Len(t, seen, 1, "without a failover the store reports it")
	}
}

// TestADecisionOfThePrimaryHasItsRules checks that a delayed report contains
// its own decision's rules, although other decisions reuse the memory.
func TestADecisionOfThePrimaryHasItsRules(t *testing.T) {
	set := parsed(t, "rules: [{name: a, key: user, limit: fixed-window 9/h}]")
	var seen []string
	opts := policy.Options{ReuseRules: true, OnDecision: func(d policy.Decision) {
		for _, r := range d.Rules {
			seen = append(seen, r.Rule+" "+r.Key)
		}
	}}
	primary, err := policy.New(set, &opts)
	require.NoError(t, err)
	l, err := failover.New[policy.Request](primary, failover.DenyAll[policy.Request](), &failover.Options{Timeout: time.Minute})
	require.NoError(t, err)
	for _, user := range []string{"ann", "bob"} {
		d, err := l.Take(t.Context(), policy.Attributes{"user": user}, 1)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
	assert.Equal(t, []string{"a ann", "a bob"}, seen)
}

// TestAShadowOnADeadServerDeniesNothing sends requests that only shadows match. An outage must not refuse them.
func TestAShadowOnADeadServerDeniesNothing(t *testing.T) {
	var last policy.Decision
	db := sql.OpenDB(noServer{})
	defer db.Close()
	p, err := policy.New(parsed(t, `
rules:
- {name: trial, key: user, limit: fixed-window 5/h, shadow: true}
- {name: writes, key: user, limit: fixed-window 5/h, match: {attributes: {method: POST}}}
`), &policy.Options{OnDecision: func(d policy.Decision) { last = d }, Engine: func(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		return sqllimit.New(db, b.Limit, &sqllimit.Options{Name: b.Name})
	}})
	require.NoError(t, err)
	for _, cost := range []int{0, 1, 5} {
		assert.True(t, p.Allow(policy.Attributes{"user": "ann"}, cost))
		assert.False(t, last.Rules[0].Answered)
		_, err := p.Take(t.Context(), policy.Attributes{"user": "ann", "method": "POST"}, cost)
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.Take(gone, policy.Attributes{"user": "ann"}, 1)
	require.ErrorIs(t, err, context.Canceled)
}
