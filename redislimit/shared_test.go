package redislimit

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/wait"
)

// queued is a decision to be sent together with others.
type queued struct {
	request
}

func newQueued(l *Limiter, key string, cost int64) *queued {
	var a queued
	a.request.one(l, l.space.key(key), l.plan.Load(), cost, wait.Forever, opTake)
	a.prepare(&a.call, opTake)
	return &a
}

// decided reads the answer.
func (a *queued) decided(ctx context.Context) (allowed bool, err error) {
	if err := a.call.err; err != nil {
		return false, classify(ctx, err, a.call.batch.written())
	}
	text, _ := a.call.reply.(string)
	err = a.answer(text)
	return a.allowed, err
}

// together sends decisions in the same way as a lane sends waiting ones.
func together(ctx context.Context, l *Limiter, all ...*queued) {
	b := &batch{staying: len(all)}
	for _, a := range all {
		a.call.batch = b
		b.calls = append(b.calls, &a.call)
	}
	l.store.lane.pipeline(ctx, b)
}

// wants compares decisions' answers with verdicts.
func wants(t *testing.T, all []*queued, verdicts ...bool) {
	t.Helper()
	for i, a := range all {
		allowed, err := a.decided(t.Context())
		require.NoError(t, err, "decision %d", i)
		assert.Equal(t, verdicts[i], allowed, "decision %d", i)
	}
}

func TestDecisionsInOneCallAreDecidedEachByItself(t *testing.T) {
	f := newFixture(t)
	verdicts(t)
	for _, limit := range fiveLimits() {
		t.Run(limit.Name, func(t *testing.T) {
			l := f.real(limit)
			requests := func() []*queued {
				return []*queued{newQueued(l, "a", 6), newQueued(l, "b", 10), newQueued(l, "a", 6), newQueued(l, "a", 4), newQueued(l, "b", 1)}
			}
			for i, want := range [][]bool{{true, true, false, true, false}, {false, false, false, false, false}} {
				all := requests()
				f.resetStats()
				together(t.Context(), l, all...)
				assert.LessOrEqual(t, f.stats()["evalsha"]+f.stats()["eval"], 2-i, "one call, and another one that teaches the script")
				wants(t, all, want...)
			}
			assert.Zero(t, f.left(l, "a"))
			assert.Zero(t, f.left(l, "b"))
		})
	}
}

func TestAnUnusualDecisionDisturbsNoOtherInTheCall(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		t.Run(limit.Name, func(t *testing.T) {
			l := f.real(limit)
			require.NoError(t, f.client.Set(t.Context(), l.space.key("garbage"), "7", 0).Err())
			require.NoError(t, f.client.LPush(t.Context(), l.space.key("list"), "7").Err())
			require.NoError(t, l.Adjust(t.Context(), "debt", 25))
			all := []*queued{newQueued(l, "garbage", 1), newQueued(l, "fine", 10), newQueued(l, "list", 1), newQueued(l, "debt", 1), newQueued(l, "fine", 1)}
			f.resetStats()
			together(t.Context(), l, all...)
			for _, i := range []int{0, 2} {
				_, err := all[i].decided(t.Context())
				assert.ErrorIs(t, err, errForeignState)
				assert.ErrorContains(t, err, limit.Name)
			}
			wants(t, []*queued{all[1], all[3], all[4]}, true, false, false)
			assert.Equal(t, "7", f.client.Get(t.Context(), l.space.key("garbage")).Val())
		})
	}
}

func TestDecisionsOfSeveralKindsShareARoundTrip(t *testing.T) {
	f := newFixture(t)
	var all []*queued
	var l *Limiter
	for _, limit := range append(fiveLimits(), fiveLimits()...) {
		l = f.real(limit)
		all = append(all, newQueued(l, "k", 6))
	}
	for range 2 { // the second time the server knows the scripts
		together(t.Context(), l, all...)
	}
	for _, a := range all {
		_, err := a.decided(t.Context())
		assert.NoError(t, err)
	}
	for _, limit := range fiveLimits() {
		assert.Equal(t, 4, f.left(f.real(limit), "k"), "of two in a call one was allowed: %v", limit)
	}
}

func TestOutOfMemoryRefusesEveryDecisionInTheCall(t *testing.T) {
	f := newFixture(t)
	l := f.real(perMinute(10))
	require.True(t, l.Allow("a", 1))
	require.NoError(t, f.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	all := []*queued{newQueued(l, "a", 1), newQueued(l, "b", 1)}
	together(t.Context(), l, all...)
	for _, a := range all {
		_, err := a.decided(t.Context())
		unavailableUnsent(t, err)
	}
}

// A *redis.Client may belong to a server with slots. One call cannot have keys of several slots then.
func TestASoleServerWithSlotsDecidesOnKeysOfSeveralSlots(t *testing.T) {
	t.Parallel()
	s := startServer(t, "--cluster-enabled", "yes")
	client := s.client()
	require.NoError(t, client.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	l, err := New(client, perMinute(10), &Options{Name: "slots", Timeout: 20 * time.Second})
	require.NoError(t, err)
	warm(t, l)
	for range 2 { // the second time the server knows the script
		all := []*queued{newQueued(l, "a", 4), newQueued(l, "b", 4), newQueued(l, "c", 4)}
		together(t.Context(), l, all...)
		wants(t, all, true, true, true)
		assert.True(t, sharing(l.store.lane.share.Load()) == shareSlot)
	}
	for _, key := range []string{"a", "b", "c"} {
		d, err := l.Peek(t.Context(), key, 0)
		require.NoError(t, err)
		assert.Equal(t, 2, d.Remaining)
	}
}
