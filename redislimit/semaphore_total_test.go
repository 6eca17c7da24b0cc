package redislimit

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// capped returns a semaphore with Total on the test's clock.
func (f *fixture) capped(limit, total int, o SemaphoreOptions) *Semaphore {
	o.Name, o.Total = "slots", total
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	s, err := NewSemaphore(f.client, limit, &o)
	require.NoError(f.t, err)
	s.store.clock = func() int64 { return epoch + int64(f.clock.Now())/1000 }
	s.store.grace = outlive
	return s
}

// poll repeats a waiting request, and reports whether it has its slots.
func (f *fixture) poll(p *Permit) bool {
	f.t.Helper()
	f.clock.Advance(10 * time.Microsecond) // each script takes some time, so tokens rise
	limit, err := p.of.limitOf(p.key, p.n)
	require.NoError(f.t, err)
	state, err := p.take(f.t.Context(), limit, howPoll)
	require.NoError(f.t, err)
	return state == slotsTaken
}

// state returns each key's figures, and the sum of the slots in use.
func (f *fixture) state(s *Semaphore, keys []string) (sum int, each map[string]SemaphoreStats) {
	f.t.Helper()
	each = map[string]SemaphoreStats{}
	for _, key := range keys {
		one, err := s.Snapshot(f.t.Context(), key)
		require.NoError(f.t, err)
		each[key] = one
		sum += one.InFlight
	}
	return sum, each
}

func TestUnderTotalALoneCallerHasTheNextTurnOfManyOfAnotherKey(t *testing.T) {
	f := newFixture(t)
	s := f.capped(10, 2, SemaphoreOptions{})
	var held []*Permit
	for range 2 {
		p, err := s.TryAcquire(t.Context(), "many", 1)
		require.NoError(t, err)
		held = append(held, p)
	}
	var many []*Permit
	for range 30 {
		p := s.permit("many", 1)
		require.False(t, f.poll(p))
		many = append(many, p)
	}
	lone := s.permit("lone", 1)
	require.False(t, f.poll(lone))
	_, err := s.TryAcquire(t.Context(), "third", 1)
	require.ErrorIs(t, err, ratelimit.ErrLimited, "no slot is free")
	require.NoError(t, held[0].Release(t.Context()))
	require.True(t, f.poll(many[0]), "it came first")
	require.False(t, f.poll(lone))
	require.NoError(t, held[1].Release(t.Context()))
	require.True(t, f.poll(lone), "then it is the other key's turn")
	require.False(t, f.poll(many[1]))
	sum, _ := f.state(s, []string{"many", "lone", "third"})
	assert.Equal(t, 2, sum)
}

func TestAKeyAtItsOwnLimitHoldsUpNoOther(t *testing.T) {
	f := newFixture(t)
	s := f.capped(3, 10, SemaphoreOptions{})
	for i := range 20 {
		assert.Equal(t, i < 3, f.poll(s.permit("a", 1)))
	}
	for _, key := range []string{"b", "c"} {
		_, err := s.TryAcquire(t.Context(), key, 3)
		require.NoError(t, err, "a's callers wait for a's own slots")
	}
	one, err := s.TryAcquire(t.Context(), "d", 1)
	require.NoError(t, err)
	_, err = s.TryAcquire(t.Context(), "e", 1)
	require.ErrorIs(t, err, ratelimit.ErrLimited)
	assert.ErrorContains(t, err, `semaphore "slots"`)
	assert.NotContains(t, err.Error(), "e of")
	require.NoError(t, one.Release(t.Context()))
	_, err = s.Acquire(t.Context(), "d", 11)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.NoError(t, s.SetLimit(20))
	_, err = s.Acquire(t.Context(), "d", 11)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.ErrorContains(t, err, "10, the semaphore's Total")
}

func TestPriorityComesBeforeTurns(t *testing.T) {
	f := newFixture(t)
	s := f.capped(5, 1, SemaphoreOptions{Priority: func(key string) int { return map[string]int{"high": math.MaxInt, "low": -3}[key] }})
	held, err := s.TryAcquire(t.Context(), "low", 1)
	require.NoError(t, err)
	var all []*Permit
	for _, key := range []string{"low", "usual", "high", "high"} {
		p := s.permit(key, 1)
		require.False(t, f.poll(p))
		all = append(all, p)
	}
	for _, next := range []int{2, 3, 1, 0} {
		require.NoError(t, held.Release(t.Context()))
		held = all[next]
		require.True(t, f.poll(held), next)
	}
	require.NoError(t, held.Release(t.Context()))
	assert.Empty(t, f.dump())
}

// A request for many slots is served even if new keys keep coming.
func TestUnderTotalARequestForManySlotsIsServedAmongNewKeys(t *testing.T) {
	f := newFixture(t)
	s := f.capped(4, 4, SemaphoreOptions{})
	var held []*Permit
	for i := range 4 {
		p, err := s.TryAcquire(t.Context(), fmt.Sprint("first", i), 1)
		require.NoError(t, err)
		held = append(held, p)
	}
	large := s.permit("large", 4)
	require.False(t, f.poll(large))
	for i, p := range held {
		require.False(t, f.poll(s.permit(fmt.Sprint("new", i), 1)))
		require.NoError(t, p.Release(t.Context()))
	}
	assert.True(t, f.poll(large))
}

// Three processes make random calls on several keys. No limit is exceeded, and no slot is idle while a waiting
// caller may have it. The scripts' sum is right, and nothing stays behind. Scripts fail midway now and then.
func TestRandomCallsUnderTotalExceedNothingAndLeaveNoSlotIdle(t *testing.T) {
	for i := range testsize.Of(6, 60) {
		seed := testsize.Seed(uint64(i))
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			f := newFixture(t)
			rng := rand.New(rand.NewPCG(seed, 2))
			total, limit := 2+rng.IntN(8), 1+rng.IntN(5)
			keys := []string{"a", "b", "c", "d}", ""}
			var all []*Semaphore
			for range 3 {
				s := f.capped(limit, total, SemaphoreOptions{Hold: time.Duration(1+rng.IntN(10)) * time.Second,
					Priority: func(key string) int { return len(key) }})
				all = append(all, s)
			}
			var held, waiting []*Permit
			tokens := map[string]int64{}
			got := func(p *Permit) {
				require.Greater(t, p.Token(), tokens[p.key])
				tokens[p.key] = p.Token()
				held = append(held, p)
			}
			for range 250 {
				f.clock.Advance(10 * time.Microsecond)
				s, key := all[rng.IntN(3)], keys[rng.IntN(len(keys))]
				switch op := rng.IntN(10); {
				case op < 2:
					if p, err := s.TryAcquire(t.Context(), key, 1); err == nil {
						got(p)
					} else {
						require.ErrorIs(t, err, ratelimit.ErrLimited)
					}
				case op < 5:
					if p := s.permit(key, 1); f.poll(p) {
						got(p)
					} else {
						waiting = append(waiting, p)
					}
				case op < 8 && len(held) > 0:
					i := rng.IntN(len(held))
					if err := held[i].Release(t.Context()); err != nil {
						require.ErrorIs(t, err, ErrLost)
					}
					held = append(held[:i], held[i+1:]...)
				case op == 8 && len(held) > 0:
					if err := held[rng.IntN(len(held))].Extend(t.Context()); err != nil {
						require.ErrorIs(t, err, ErrLost)
					}
				default:
					f.clock.Advance(time.Duration(rng.IntN(1_500_000)) * time.Microsecond)
					if rng.IntN(4) == 0 { // a failing script leaves this state
						f.client.HSet(t.Context(), all[0].shared[0], "", "x")
					}
				}
				left := waiting[:0]
				for _, p := range waiting {
					if f.poll(p) {
						held = append(held, p)
						tokens[p.key] = max(tokens[p.key], p.Token())
					} else {
						left = append(left, p)
					}
				}
				waiting = left
				sum, each := f.state(s, keys)
				require.LessOrEqual(t, sum, total)
				for key, one := range each {
					require.LessOrEqual(t, one.InFlight, limit)
					if one.Waiting > 0 && one.InFlight < limit {
						require.Equal(t, total, sum, "callers of %q wait", key)
					}
				}
			}
			for _, p := range waiting {
				_, err := p.giveBack(t.Context())
				require.NoError(t, err)
			}
			for _, p := range held {
				_, err := p.giveBack(t.Context())
				require.NoError(t, err)
			}
			f.clock.Advance(time.Minute)
			for _, key := range keys {
				p, err := all[0].TryAcquire(t.Context(), key, 1)
				require.NoError(t, err)
				require.NoError(t, p.Release(t.Context()))
			}
			assert.Empty(t, f.dump())
		})
	}
}

// A fleet runs ten jobs in all and three of each tenant, for a minute or an hour. Some
// tenants have hundreds of jobs, another one has a job now and then, and a process is killed.
func TestTwoCapsOfAFleetAreUsedInFullAndALoneTenantWaitsAJob(t *testing.T) {
	testsize.Sequential(t)
	f := newFixture(t)
	const total, limit, length, tick = 10, 3, 4 * time.Second, 250 * time.Millisecond
	const hold = 15 * time.Second
	all := make([]*Semaphore, 3)
	for i := range all {
		all[i] = f.capped(limit, total, SemaphoreOptions{Hold: hold, Timeout: 2 * time.Second})
	}
	type job struct {
		p    *Permit
		from time.Duration
		ends time.Duration
		dead bool
	}
	rng := rand.New(rand.NewPCG(7, 7))
	var jobs, fresh []*job
	begin := func(tenant string, now time.Duration) {
		fresh = append(fresh, &job{p: all[rng.IntN(len(all))].permit(tenant, 1), from: now})
	}
	busy := []string{"a", "b", "c", "d"}
	for _, tenant := range busy {
		for range 8 {
			begin(tenant, 0)
		}
	}
	lasts := testsize.Of(time.Minute, time.Hour)
	var used, wanted, worst time.Duration
	lone := 0
	for now := time.Duration(0); now < lasts; now += tick {
		f.clock.Set(now)
		if now == lasts/3 { // a process is killed: its jobs hold their slots until hold has passed, and its callers have gone
			for _, j := range jobs {
				j.dead = j.dead || j.p.of == all[2]
			}
			all = all[:2]
		}
		if lone == 0 && rng.IntN(20) == 0 {
			lone++
			begin("lone", now)
		}
		running := 0
		jobs, fresh = append(jobs, fresh...), nil
		left := jobs[:0]
		for _, j := range jobs {
			switch {
			case j.dead && (j.ends == 0 || now > lasts/3+hold):
				begin(j.p.key, now) // another process repeats the work
				continue
			case j.dead:
				running++
			case j.ends == 0 && f.poll(j.p):
				j.ends = now + length*3/4 + time.Duration(rng.Int64N(int64(length/2)))
				running++
				if j.p.key == "lone" {
					worst = max(worst, now-j.from)
				}
			case j.ends == 0:
			case now >= j.ends:
				require.NoError(t, j.p.Release(t.Context()))
				if j.p.key == "lone" {
					lone--
				} else {
					begin(j.p.key, now)
				}
				continue
			default:
				running++
				if now%(hold/3) < tick {
					require.NoError(t, j.p.Extend(t.Context()))
				}
			}
			left = append(left, j)
		}
		jobs = left
		sum, each := f.state(all[0], append(busy, "lone"))
		require.LessOrEqual(t, sum, total)
		for _, one := range each {
			require.LessOrEqual(t, one.InFlight, limit)
		}
		used += time.Duration(min(running, total)) * tick
		wanted += total * tick
	}
	share := used.Seconds() / wanted.Seconds()
	t.Logf("%.1f %% busy; a lone tenant's job waited %v at most", 100*share, worst)
	assert.GreaterOrEqual(t, share, 0.95)
	assert.LessOrEqual(t, worst, length*5/4, "the longest job")
}

func TestASemaphoreWithTotalHoldsItsLimitsUnderCallersOfSeveralProcesses(t *testing.T) {
	t.Parallel()
	clients := spreadClients(t)
	clients["plain"] = startServer(t).client()
	for kind, client := range clients {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const limit, total, keys = 3, 5, 4
			var all []*Semaphore
			for range 3 {
				s, err := NewSemaphore(client, limit, &SemaphoreOptions{Name: "total", Total: total, Timeout: 10 * time.Second})
				require.NoError(t, err)
				all = append(all, s)
			}
			var inFlight [keys]atomic.Int64
			var sum atomic.Int64
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() {
					k, n := i%keys, int64(1+i%limit)
					for range 3 {
						permit, err := all[i%len(all)].Acquire(t.Context(), fmt.Sprint("k", k), int(n))
						if !assert.NoError(t, err) {
							return
						}
						assert.LessOrEqual(t, inFlight[k].Add(n), int64(limit))
						assert.LessOrEqual(t, sum.Add(n), int64(total))
						assert.Positive(t, permit.Token())
						time.Sleep(rand.N(time.Millisecond))
						inFlight[k].Add(-n)
						sum.Add(-n)
						assert.NoError(t, permit.Release(t.Context()))
					}
				})
			}
			wg.Wait()
			for k := range keys {
				stats, err := all[0].Snapshot(t.Context(), fmt.Sprint("k", k))
				require.NoError(t, err)
				assert.Zero(t, stats)
			}
			assert.Zero(t, client.Exists(t.Context(), all[0].shared[0]).Val()+client.Exists(t.Context(), all[0].shared[1]).Val(), "nothing stays behind")
			assert.Zero(t, all[0].Stats().InFlight)
		})
	}
}

func TestTokensRiseWithEachGrantHoweverItArrives(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(1)
	held := f.held(s, 1)
	last := held.Token()
	for range 5 {
		f.clock.Advance(time.Millisecond)
		got := f.waiter(s, 1) // the grant arrives by a message, an answer or a beat
		require.NoError(t, held.Release(t.Context()))
		held = <-got
		require.Greater(t, held.Token(), last)
		last = held.Token()
	}
	require.NoError(t, held.Extend(t.Context()))
	assert.Equal(t, last, held.Token())
	state, err := held.take(t.Context(), 1, howTry)
	require.NoError(t, err)
	require.EqualValues(t, slotsTaken, state)
	assert.Equal(t, last, held.Token(), "a call that is repeated finds its grant")
	assert.Zero(t, (*Permit)(nil).Token())
}

func TestHoldersAreShownAndRevoked(t *testing.T) {
	f := newFixture(t)
	s := f.semaphore(5)
	other, err := NewSemaphore(f.client, 5, &SemaphoreOptions{Name: "slots", Owner: "worker 7", Hold: time.Minute, Timeout: 10 * time.Second})
	require.NoError(t, err)
	other.store.clock, other.store.grace = s.store.clock, outlive
	first, err := s.TryAcquire(t.Context(), "k", 2)
	require.NoError(t, err)
	f.clock.Advance(10 * time.Second)
	second, err := other.TryAcquire(t.Context(), "k", 3)
	require.NoError(t, err)
	require.NoError(t, first.Extend(t.Context()))
	all, err := s.Holders(t.Context(), "k")
	require.NoError(t, err)
	require.Len(t, all, 2)
	at := time.UnixMicro(epoch)
	assert.Equal(t, Holder{ID: all[0].ID, Units: 2, Owner: thisProcess(), Since: at, Until: at.Add(40 * time.Second)}, all[0])
	assert.Equal(t, Holder{ID: all[1].ID, Units: 3, Owner: "worker 7", Since: at.Add(10 * time.Second), Until: at.Add(70 * time.Second)}, all[1])
	waits := f.waiter(s, 3)
	require.NoError(t, s.Revoke(t.Context(), "k", all[1].ID))
	next := <-waits
	require.ErrorIs(t, second.Extend(t.Context()), ErrLost)
	require.ErrorIs(t, second.Release(t.Context()), ErrLost)
	assert.Equal(t, SemaphoreStats{Lost: 1}, other.Stats())
	for _, id := range []string{all[1].ID, "", "zz", all[0].ID + "00"} {
		require.ErrorIs(t, s.Revoke(t.Context(), "k", id), ErrLost, id)
	}
	assert.Equal(t, 5, s.Stats().InFlight)
	require.NoError(t, next.Release(t.Context()))
	require.NoError(t, first.Release(t.Context()))
	all, err = s.Holders(t.Context(), "k")
	require.NoError(t, err)
	assert.Empty(t, all)
	assert.Equal(t, SemaphoreStats{}, s.Stats())
}

func TestRevokedWorkOfDoEndsWithErrLost(t *testing.T) {
	t.Parallel()
	client := startServer(t).client()
	s, err := NewSemaphore(client, 3, &SemaphoreOptions{Name: "slots", Hold: time.Second, Timeout: 10 * time.Second})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 3 { // the extensions of these share a call
		wg.Go(func() {
			err := s.Do(t.Context(), fmt.Sprint("k", i%2), 1, func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
			assert.ErrorIs(t, err, ErrLost)
		})
	}
	require.Eventually(t, func() bool { return s.Stats().InFlight == 3 }, 20*time.Second, time.Millisecond)
	for _, key := range []string{"k0", "k1"} {
		all, err := s.Holders(t.Context(), key)
		require.NoError(t, err)
		for _, h := range all {
			require.NoError(t, s.Revoke(t.Context(), key, h.ID))
		}
	}
	wg.Wait()
	assert.Equal(t, SemaphoreStats{Lost: 3}, s.Stats())
}

func TestStatsForgetPermitsThatAreNeverReleased(t *testing.T) {
	t.Parallel()
	s, err := NewSemaphore(startServer(t).client(), maxSlots, &SemaphoreOptions{Name: "slots", Hold: time.Millisecond, Timeout: 10 * time.Second})
	require.NoError(t, err)
	for range 300 {
		if p, err := s.TryAcquire(t.Context(), "k", 1); err == nil {
			s.hand(p)
		}
	}
	require.Eventually(t, func() bool { return s.Stats() == SemaphoreStats{} }, 20*time.Second, time.Millisecond)
}

// However many keys callers wait for, the number of calls depends on the servers alone.
func TestWaitersOfManyKeysShareTheirBeats(t *testing.T) {
	t.Parallel()
	for name, total := range map[string]int{"each key alone": 0, "with a total": 150} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := startServer(t).client()
			const keys = 150
			s, err := NewSemaphore(client, 1, &SemaphoreOptions{Name: "slots", Total: total, Timeout: 10 * time.Second})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			for i := range keys {
				_, err := s.TryAcquire(ctx, fmt.Sprint(i), 1)
				require.NoError(t, err)
				wg.Go(func() {
					_, err := s.Acquire(ctx, fmt.Sprint(i), 1)
					assert.ErrorIs(t, err, context.Canceled)
				})
			}
			together := func() int { // the number of lines whose beats share calls
				s.mu.Lock()
				defer s.mu.Unlock()
				n := 0
				for _, l := range s.lines {
					if l.listens {
						n++
					}
				}
				return n
			}
			require.Eventually(t, func() bool { return s.Stats().Waiting == keys && together() == keys }, 20*time.Second, time.Millisecond)
			calls := func() (n int) {
				for _, line := range splitLines(client.Info(t.Context(), "commandstats").Val()) {
					var one int
					if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,", &one); err == nil {
						n += one
					}
				}
				return n
			}
			time.Sleep(beatEvery) // by then the last beats of single keys have been made
			begin, before := time.Now(), calls()
			time.Sleep(4 * beatEvery)
			beats := int(time.Since(begin)/(beatEvery*3/4)) + 2
			assert.LessOrEqual(t, calls()-before, 2*beats*(keys/maxBeatKeys+1))
			assert.Equal(t, keys, together(), "the messages still arrive")
		})
	}
}

func splitLines(text string) []string { return strings.Split(text, "\r\n") }
