package ratelimit

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/meter"
)

// Two keys of which nothing tells them apart share a slot. It says no less than either has spent.
func TestKeysThatShareASlotAreBothRemembered(t *testing.T) {
	p, err := newPlan(FixedWindow(PerMinute(100)), 0, nil)
	require.NoError(t, err)
	const hash = 0x1234_5678_9abc_def0
	for _, start := range []int64{-int64(10 * time.Hour), 0, maxReading, -maxReading} {
		m := newMemory(100, start, nil)
		one := meter.Remembered{Until: start + int64(20*time.Second), Share: 200}
		other := meter.Remembered{Until: start + int64(30*time.Second), Share: 10}
		m.store(hash, p, one, start)
		require.Equal(t, one, m.recall(hash, p, start))
		m.store(hash, p, other, start)
		require.Equal(t, meter.Remembered{Until: other.Until, Share: 200}, m.recall(hash, p, start))
		m.store(hash, p, one, start)
		require.Equal(t, meter.Remembered{Until: other.Until, Share: 200}, m.recall(hash, p, start))
		require.Zero(t, m.recall(hash^1<<50, p, start), "another tag")
		require.Zero(t, m.recall(hash, p, other.Until), "it is over")
		m.takeOut(hash)
		require.Zero(t, m.recall(hash, p, start))
	}
}

// Whatever is in the slots, and whatever the clock says, no call fails, and what was stored last is
// remembered or has been counted as forgotten.
func TestAMemoryOfGarbage(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	dates := &calendars{clock: systemClock{}}
	p, err := newPlan(SlidingCounter(PerMinute(100)), 0, dates)
	require.NoError(t, err)
	dated, err := newPlan(Calendar(100, Day("America/New_York")), 0, dates)
	require.NoError(t, err)
	any64 := func() int64 { return int64(r.Uint64()) >> r.IntN(64) }
	for range 3000 {
		m := newMemory(1+r.IntN(20), max(-maxReading, min(any64(), maxReading)), dates)
		for i := range m.lines {
			for j := range m.lines[i] {
				m.lines[i][j].Store(r.Uint64() >> r.IntN(40))
			}
		}
		now := max(-maxReading, min(any64(), maxReading-1)) // at the very last reading nothing is still to come
		hash := r.Uint64()
		past := meter.Remembered{Until: max(now, m.start) + 1 + r.Int64N(1<<r.IntN(50)), Share: uint8(1 + r.IntN(255))}
		before := m.overflowed.Load()
		m.store(hash, p, past, now)
		if m.overflowed.Load() == before {
			require.True(t, p.Covers(m.recall(hash, p, now), m.unpack(m.pack(past, 0))), "%+v at %d, from %d on", past, now, m.start)
		}
		m.changed.Store(true)
		for _, p := range []*plan{p, dated} {
			u := unseen{floor: now, memory: m, hash: hash}
			at, s := u.begin(p, now, false)
			require.Equal(t, now, at)
			require.True(t, p.wall != nil || p.Regained(s) <= max(now, min(now+int64(p.limit.RefillTime()), maxReading)))
		}
		m.takeOut(hash)
		require.Zero(t, m.recall(hash, p, now))
	}
}

func TestSlotsTellInstantsRoundedUp(t *testing.T) {
	m := newMemory(1, 0, nil)
	for until, want := range map[int64]int64{
		1: slotTick, slotTick: slotTick, slotTick + 1: 2 * slotTick,
		(slotNever - 1) * slotTick: (slotNever - 1) * slotTick, (slotNever-1)*slotTick + 1: maxReading, math.MaxInt64: maxReading,
	} {
		require.Equal(t, meter.Remembered{Until: want, Share: 7}, m.unpack(m.pack(meter.Remembered{Until: until, Share: 7}, 3)))
	}
	require.Zero(t, m.pack(meter.Remembered{Until: 0, Share: 7}, 3))
}
