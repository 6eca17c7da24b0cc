package redislimit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// slotModel is a semaphore as a list: its permits, and its line of requests by processes that poll.
type slotModel struct {
	limit   int
	permits map[*Permit]time.Duration // each permit's end
	line    []*Permit
}

func (m *slotModel) used() (sum int) {
	for p := range m.permits {
		sum += p.n
	}
	return sum
}

func (m *slotModel) expire(now time.Duration) {
	for p, ends := range m.permits {
		if ends <= now {
			delete(m.permits, p)
		}
	}
}

// serve grants slots to the line. In this model the requests claim their slots at once.
func (m *slotModel) serve(t *testing.T, now time.Duration) {
	for len(m.line) > 0 && m.used()+m.line[0].n <= m.limit {
		p := m.line[0]
		m.line = m.line[1:]
		state, err := p.take(t.Context(), int64(m.limit), howPoll)
		require.NoError(t, err)
		require.EqualValues(t, slotsTaken, state, "its turn")
		m.permits[p] = now + p.of.hold
	}
}

// Random calls, without waiting goroutines, are compared with the model.
// After each call, the scripts' summary is the sum over the permits.
func TestRandomCallsOnASemaphoreAgreeWithAModel(t *testing.T) {
	for i := range testsize.Of(6, 60) {
		seed := testsize.Seed(uint64(i))
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			f := newFixture(t)
			rng := rand.New(rand.NewPCG(seed, 1))
			m := &slotModel{limit: 1 + rng.IntN(12), permits: map[*Permit]time.Duration{}}
			var all []*Semaphore
			for range 3 {
				s := f.semaphore(m.limit)
				s.hold = time.Duration(1+rng.IntN(20)) * time.Second
				all = append(all, s)
			}
			var known []*Permit
			for step := range 250 {
				now := time.Duration(f.clock.Now())
				m.expire(now)
				s, n := all[rng.IntN(3)], 1+rng.IntN(m.limit)
				switch op := rng.IntN(10); {
				case op < 3:
					p, err := s.TryAcquire(t.Context(), "k", n)
					m.serve(t, now) // the call has freed ended slots and granted them
					free := len(m.line) == 0 && err == nil || m.used()+n <= m.limit && len(m.line) == 0
					require.Equal(t, free, err == nil, "step %d: %d of %d used, %d in line: %v", step, m.used(), m.limit, len(m.line), err)
					if err == nil {
						require.LessOrEqual(t, m.used()+n, m.limit)
						m.permits[p] = now + s.hold
						known = append(known, p)
					} else {
						require.ErrorIs(t, err, ratelimit.ErrLimited)
					}
				case op < 5:
					p := s.permit("k", n)
					state, err := p.take(t.Context(), int64(m.limit), howPoll)
					require.NoError(t, err)
					m.serve(t, now)
					if state == slotsTaken {
						require.Empty(t, m.line)
						require.LessOrEqual(t, m.used()+n, m.limit)
						m.permits[p] = now + s.hold
					} else {
						m.line = append(m.line, p)
						m.serve(t, now)
						require.NotContains(t, m.permits, p, "it had to wait")
					}
					known = append(known, p)
				case op < 8 && len(known) > 0:
					p := known[rng.IntN(len(known))]
					p.released.Store(false) // so a second release reaches Redis, too
					p.returned.Store(false)
					held, err := p.giveBack(t.Context())
					require.NoError(t, err)
					_, has := m.permits[p]
					require.Equal(t, has, held, "step %d", step)
					delete(m.permits, p)
					for i, waiting := range m.line {
						if waiting == p {
							m.line = append(m.line[:i:i], m.line[i+1:]...)
							break
						}
					}
					m.serve(t, now)
				case op == 8 && len(known) > 0:
					p := known[rng.IntN(len(known))]
					p.released.Store(false)
					err := p.Extend(t.Context())
					_, has := m.permits[p]
					require.Equal(t, has, err == nil, "step %d", step)
					require.True(t, err == nil || errors.Is(err, ErrLost))
					if has {
						m.permits[p] = now + p.of.hold
					}
				default:
					f.clock.Advance(time.Duration(rng.IntN(3_000_000)) * time.Microsecond)
					now = time.Duration(f.clock.Now())
					m.expire(now)
					for _, p := range m.line { // the processes of these requests poll
						state, err := p.take(t.Context(), int64(m.limit), howPoll)
						require.NoError(t, err)
						if state == slotsTaken {
							break
						}
					}
					m.serve(t, now)
				}
				f.agrees(all[0], m)
			}
		})
	}
}

func (f *fixture) agrees(s *Semaphore, m *slotModel) {
	f.t.Helper()
	stats := f.snapshot(s)
	require.Equal(f.t, m.used(), stats.InFlight)
	require.Equal(f.t, len(m.line), stats.Waiting)
	summary, err := strconv.ParseInt(strconv.FormatFloat(-f.client.ZScore(f.t.Context(), s.space.key("k"), "u").Val(), 'f', 0, 64), 10, 64)
	require.NoError(f.t, err)
	kinds := map[byte]int{}
	for _, member := range f.client.ZRange(f.t.Context(), s.space.key("k"), 0, -1).Val() {
		kinds[member[0]]++
	}
	assert.LessOrEqual(f.t, kinds['s'], kinds['p'], "the first time of a permit ends with it")
	if summary != 0 { // otherwise the set is gone
		assert.GreaterOrEqual(f.t, int(summary%(1<<14)), stats.InFlight, "permits that have ended may still be in it")
	}
}
