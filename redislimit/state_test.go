package redislimit

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// fiveLimits returns a limit of each algorithm except Calendar, with a capacity of 10.
func fiveLimits() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerMinute(10), 10).Named("token"),
		ratelimit.LeakyBucket(ratelimit.PerMinute(10), 10).Named("leaky"),
		ratelimit.FixedWindow(ratelimit.PerMinute(10)).Named("fixed"),
		ratelimit.SlidingLog(ratelimit.PerMinute(10)).Named("log"),
		ratelimit.SlidingCounter(ratelimit.PerMinute(10)).Named("counter"),
	}
}

// stats counts each command's runs on the server since the last reset.
func (f *fixture) stats() map[string]int {
	info, err := f.client.Info(f.t.Context(), "commandstats").Result()
	require.NoError(f.t, err)
	calls := make(map[string]int)
	for _, line := range strings.Split(info, "\r\n") {
		var n int
		name, rest, _ := strings.Cut(line, ":")
		if _, err := fmt.Sscanf(rest, "calls=%d,", &n); err == nil {
			calls[strings.TrimPrefix(name, "cmdstat_")] = n
		}
	}
	delete(calls, "info")
	delete(calls, "config|resetstat")
	return calls
}

func (f *fixture) resetStats() {
	require.NoError(f.t, f.client.ConfigResetStat(f.t.Context()).Err())
}

// real returns a limiter on the server's own clock.
func (f *fixture) real(limit ratelimit.Limit) *Limiter {
	l, err := New(f.client, limit, &Options{Name: limit.Algorithm.String(), Timeout: 10 * time.Second})
	require.NoError(f.t, err)
	return l
}

func TestOneCallDecides(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		t.Run(limit.Name, func(t *testing.T) {
			l := f.real(limit)
			l.Allow("k", 1)
			f.resetStats()
			for range 5 {
				assert.True(t, l.Allow("k", 1))
			}
			stats := f.stats()
			assert.Equal(t, 5, stats["evalsha"])
			assert.Equal(t, 5, stats["time"], "the server's clock is read once for each")
			assert.Equal(t, 5, stats["get"]+stats["getrange"])
			assert.Equal(t, 5, stats["set"]+stats["append"])
			assert.Len(t, stats, 4+min(1, stats["append"]*stats["set"]), "nothing else is run: %v", stats)
		})
	}
}

func TestADecisionThatChargesNothingWritesNothing(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		t.Run(limit.Name, func(t *testing.T) {
			l := f.real(limit)
			l.Peek(t.Context(), "k", 1)
			assert.True(t, l.Allow("k", 10))
			before := f.dump()
			f.resetStats()
			assert.False(t, l.Allow("k", 3))
			_, err := l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			_, err = l.Take(t.Context(), "k", 0)
			require.NoError(t, err)
			_, err = l.Take(t.Context(), "other", 0)
			require.NoError(t, err)
			r, err := l.Reserve(t.Context(), "k", 5, time.Millisecond)
			require.NoError(t, err)
			assert.False(t, r.Allowed)
			require.NoError(t, l.Adjust(t.Context(), "unseen", -5))
			stats := f.stats()
			for _, write := range []string{"set", "append", "setrange", "pexpire", "del"} {
				assert.Zero(t, stats[write], write)
			}
			assert.Equal(t, before, f.dump())
		})
	}
}

// dump returns all data of the server.
func (f *fixture) dump() map[string]string {
	all := make(map[string]string)
	keys, err := f.client.Keys(f.t.Context(), "*").Result()
	require.NoError(f.t, err)
	for _, k := range keys {
		all[k], err = f.client.Dump(f.t.Context(), k).Result()
		require.NoError(f.t, err)
	}
	return all
}

func TestCallsThatCannotChargeAreNotSent(t *testing.T) {
	f := newFixture(t)
	burst := ratelimit.TokenBucket(ratelimit.PerMinute(10), 10)
	l := f.real(burst)
	take := func(cost int) func() error {
		return func() error {
			d, err := l.Take(t.Context(), "k", cost)
			assert.Zero(t, d.RetryAfter)
			return err
		}
	}
	for name, c := range map[string]struct {
		limit ratelimit.Limit // burst if it is the zero Limit
		call  func() error
		err   error
	}{
		"a negative cost":       {call: take(-1), err: ratelimit.ErrNegativeCost},
		"a cost above 10":       {call: take(11), err: ratelimit.ErrExceedsLimit},
		"a huge cost":           {call: take(1 << 30), err: ratelimit.ErrExceedsLimit},
		"Allow":                 {call: func() error { assert.False(t, l.Allow("k", -1)); return nil }},
		"Blocked":               {limit: ratelimit.Blocked(), call: take(1), err: ratelimit.ErrBlocked},
		"Unlimited":             {limit: ratelimit.Unlimited(), call: func() error { return mustReserve(t, l, "k", 1<<30).Settle(5) }},
		"Adjust of no spending": {limit: ratelimit.Unlimited(), call: func() error { return l.Adjust(t.Context(), "k", 5) }},
	} {
		t.Run(name, func(t *testing.T) {
			f.resetStats()
			require.NoError(t, l.SetLimit(cmp.Or(c.limit, burst)))
			err := c.call()
			require.ErrorIs(t, err, c.err)
			assert.NotErrorIs(t, err, ratelimit.ErrUnavailable)
			assert.NotErrorIs(t, err, ratelimit.ErrUnanswered)
			assert.Empty(t, f.stats())
		})
	}
}

// A caller that has left gets no decision, not even one for which nothing is sent, and LimitFor is not called.
func TestACallerThatHasLeftGetsNoDecision(t *testing.T) {
	f := newFixture(t)
	l := newOn(t, f.client, perMinute(10), "left", Options{LimitFor: func(string) ratelimit.Limit {
		assert.Fail(t, "LimitFor is called")
		return ratelimit.Unlimited()
	}})
	left, leave := contextWithCancel(t)
	leave()
	for name, call := range map[string]func() error{
		"Take":    func() error { _, err := l.Take(left, "k", 1); return err },
		"Peek":    func() error { _, err := l.Peek(left, "k", 1); return err },
		"Reserve": func() error { _, err := l.Reserve(left, "k", 1, time.Second); return err },
		"Wait":    func() error { return l.Wait(left, "k", 1) },
		"Adjust":  func() error { return l.Adjust(left, "k", 1) },
		"Reset":   func() error { return l.Reset(left, "k") },
	} {
		f.resetStats()
		err := call()
		require.ErrorIs(t, err, context.Canceled, name)
		assert.NotErrorIs(t, err, ratelimit.ErrUnavailable, name)
		assert.NotErrorIs(t, err, ratelimit.ErrUnanswered, name)
		assert.Empty(t, f.stats(), name)
	}
}

func TestABigLogIsSearchedWhereItLies(t *testing.T) {
	f := newFixture(t)
	verdicts(t)
	memory, err := ratelimit.New(ratelimit.SlidingLog(ratelimit.Per(1500, time.Hour)), &ratelimit.Options[string]{Clock: f.clock})
	require.NoError(t, err)
	l := f.limiter(ratelimit.SlidingLog(ratelimit.Per(1500, time.Hour)), "big")
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range 3000 { // the loop goes past the window, so old spendings are dropped
		f.clock.Advance(time.Duration(rng.IntN(4500)) * time.Millisecond)
		cost := 1 + rng.IntN(2)*(i%5)
		want, _ := memory.Take(t.Context(), "k", cost)
		got, err := l.Take(t.Context(), "k", cost)
		require.NoError(t, err)
		want.Limit = got.Limit
		require.Equal(t, want, got, "step %d", i)
	}
	f.resetStats()
	_, err = l.Take(t.Context(), "k", 1500)
	require.NoError(t, err)
	stats := f.stats()
	assert.Zero(t, stats["get"], "the log is not read as a whole")
	assert.Equal(t, 1, stats["strlen"])
	assert.Less(t, stats["getrange"], 30)
}

func TestEveryKeyHasATimeToLive(t *testing.T) {
	f := newFixture(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var open []*ratelimit.Reservation
	var limiters []*Limiter
	for i, limit := range append(fiveLimits(), ratelimit.TokenBucket(ratelimit.Per(1000, time.Microsecond), 1), ratelimit.FixedWindow(ratelimit.Per(5, time.Microsecond))) {
		l, err := New(f.client, limit, &Options{Name: fmt.Sprintf("ttl%d", i), Timeout: 10 * time.Second})
		require.NoError(t, err)
		limiters = append(limiters, l)
	}
	for range 1500 {
		l, key := limiters[rng.IntN(len(limiters))], fmt.Sprint(rng.IntN(5))
		switch rng.IntN(6) {
		case 0:
			require.NoError(t, l.Adjust(t.Context(), key, rng.IntN(30)-20))
		case 1:
			if len(open) > 0 {
				require.NoError(t, open[len(open)-1].Settle(rng.IntN(4)))
				open = open[:len(open)-1]
			}
		case 2, 3:
			r, err := l.Reserve(t.Context(), key, 1, time.Duration(rng.IntN(90))*time.Second)
			require.NoError(t, err)
			open = append(open, r)
		default:
			l.Allow(key, 1)
		}
		f.checkTTL(l, key)
	}
	iter := f.client.Scan(t.Context(), 0, "*", 100).Iterator()
	n := 0
	for ; iter.Next(t.Context()); n++ {
		ttl := f.client.PTTL(t.Context(), iter.Val()).Val()
		assert.NotEqual(t, time.Duration(-1), ttl, "a key without a time to live")
	}
	assert.Greater(t, n, 5)
}

// checkTTL compares a key's time to live with the time until the key is fresh.
func (f *fixture) checkTTL(l *Limiter, key string) {
	d, err := l.Peek(f.t.Context(), key, 0)
	require.NoError(f.t, err)
	ttl := f.client.PTTL(f.t.Context(), l.space.key(key)).Val()
	if d.ResetAfter == 0 || ttl == -2 {
		return // the key is fresh, or nearly so
	}
	const late = 100 * time.Millisecond // time may pass between the two calls
	assert.GreaterOrEqual(f.t, ttl+late, d.ResetAfter, "%v", d.Limit)
	if d.Limit.Rate.Per > time.Second {
		assert.LessOrEqual(f.t, ttl, 8*time.Minute, "%v", d.Limit)
	}
}

func TestTimeToLiveIsTwiceTheTimeUntilFresh(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		l := f.real(limit)
		require.True(t, l.Allow("k", 10))
		ttl := f.client.PTTL(t.Context(), l.space.key("k")).Val()
		refill := limit.RefillTime()
		assert.InDelta(t, (2 * refill).Seconds(), ttl.Seconds(), 5, "%v", limit)
	}
}

func TestAReservationOfALostKeySettlesNothing(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		t.Run(limit.Name, func(t *testing.T) {
			for what, lose := range map[string]func(l *Limiter){
				"FLUSHALL": func(*Limiter) { require.NoError(t, f.client.FlushAll(t.Context()).Err()) },
				"DEL":      func(l *Limiter) { require.NoError(t, f.client.Del(t.Context(), l.space.key("k")).Err()) },
				"Reset":    func(l *Limiter) { require.NoError(t, l.Reset(t.Context(), "k")) },
			} {
				l := f.limiter(limit, "lost"+what+limit.Name)
				r, err := l.Reserve(t.Context(), "k", 8, 0)
				require.NoError(t, err)
				up, err := l.Reserve(t.Context(), "k", 1, time.Hour)
				require.NoError(t, err)
				lose(l)
				require.True(t, l.Allow("k", 4))
				require.NoError(t, r.Settle(0))
				require.NoError(t, up.Settle(7))
				assert.Equal(t, 6, f.left(l, "k"), what)
			}
		})
	}
}

// foreign returns values never stored by this package, at least not in this form.
func foreign(good string) map[string]string {
	mutate := func(i int, b byte) string { return good[:i] + string([]byte{b}) + good[i+1:] }
	return map[string]string{
		"a number":                   "7",
		"empty":                      "",
		"text":                       strings.Repeat("hello ", 9),
		"the tag alone":              good[:1],
		"cut short":                  good[:len(good)-1],
		"one byte too long":          good + "x",
		"another tag":                mutate(0, 0xF7),
		"a tag to come":              mutate(0, 0xFD),
		"another engine's floats":    strings.Repeat("\xF8", 44),
		"all ones":                   good[:1] + strings.Repeat("\xFF", len(good)-1),
		"no units":                   good[:1] + strings.Repeat("\x00", 7) + good[8:],
		"no per":                     good[:8] + strings.Repeat("\x00", 7) + good[15:],
		"a reading beyond counting":  mutate(15, 0xFF),
		"an instant beyond counting": mutate(22, 0xFF),
	}
}

func TestForeignValuesAreErrorsAndStayAsTheyAre(t *testing.T) {
	f := newFixture(t)
	other := f.limiter(ratelimit.TokenBucket(ratelimit.PerMinute(10), 10), "other")
	for _, limit := range fiveLimits() {
		l := f.limiter(limit, limit.Name)
		stack, err := ratelimit.All(ratelimit.By(other, identity), ratelimit.By(l, identity))
		require.NoError(t, err)
		require.True(t, l.Allow("good", 1))
		redisKey := l.space.key("k")
		good := f.client.Get(t.Context(), l.space.key("good")).Val()
		for name, value := range foreign(good) {
			t.Run(limit.Name+"/"+name, func(t *testing.T) {
				require.NoError(t, f.client.Set(t.Context(), redisKey, value, 0).Err())
				f.refuses(l, stack, redisKey, limit.Name)
				assert.Equal(t, value, f.client.Get(t.Context(), redisKey).Val())
			})
		}
		t.Run(limit.Name+"/a list", func(t *testing.T) {
			require.NoError(t, f.client.Del(t.Context(), redisKey).Err())
			require.NoError(t, f.client.LPush(t.Context(), redisKey, "x").Err())
			f.refuses(l, stack, redisKey, limit.Name)
		})
	}
	assert.Equal(t, 10, f.left(other, "k"), "the other keys of the calls are untouched")
}

// A bucket's debt includes a part of a microsecond, in 1/units. If whole
// microseconds deny a cost, the script does not read this part, but Go has to.
func TestAPartOfAMicrosecondIsLessThanOne(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits()[:2] {
		l := f.limiter(limit, limit.Name)
		stack, err := ratelimit.All(ratelimit.By(f.limiter(limit, "beside"), identity), ratelimit.By(l, identity))
		require.NoError(t, err)
		require.True(t, l.Allow("good", 10))
		good := f.client.Get(t.Context(), l.space.key("good")).Val()
		full := good[:stateN] + good[stateUnits:statePer] + good[stateGen:] // the number of parts equals units
		for name, at := range map[string]int64{"denied": f.now() + int64(time.Hour/time.Microsecond), "allowed": f.now() - 1} {
			t.Run(limit.Name+"/"+name, func(t *testing.T) {
				value := full[:stateAt] + string(put7(nil, at)) + full[stateN:]
				require.NoError(t, f.client.Set(t.Context(), l.space.key("k"), value, 0).Err())
				f.refuses(l, stack, l.space.key("k"), limit.Name)
				assert.Equal(t, value, f.client.Get(t.Context(), l.space.key("k")).Val())
			})
		}
	}
}

// now returns the fixture's time in the scripts' form.
func (f *fixture) now() int64 { return epoch + int64(f.clock.Now())/1000 }

// refuses checks that every call returns an error with the limit's name and without the key.
func (f *fixture) refuses(l *Limiter, stack *ratelimit.Layered[string], key, name string) {
	f.t.Helper()
	ctx := f.t.Context()
	_, err := l.Take(ctx, "k", 1)
	assert.ErrorIs(f.t, err, errForeignState)
	assert.NotErrorIs(f.t, err, ratelimit.ErrUnavailable)
	assert.ErrorContains(f.t, err, name)
	assert.NotContains(f.t, err.Error(), key)
	assert.False(f.t, l.Allow("k", 1))
	_, err = l.Peek(ctx, "k", 1)
	assert.ErrorIs(f.t, err, errForeignState)
	_, err = l.Reserve(ctx, "k", 1, time.Hour)
	assert.ErrorIs(f.t, err, errForeignState)
	_, err = stack.Take(ctx, "k", 1)
	assert.ErrorIs(f.t, err, errForeignState)
	assert.ErrorContains(f.t, err, name)
	assert.ErrorIs(f.t, l.Adjust(ctx, "k", 1), errForeignState)
}

func TestAGeneralDecisionIsTheQuickOne(t *testing.T) {
	testsize.Sequential(t)
	testsize.Client(t)
	usual, general := current, blocks{luaFiles}.decider(func(byte) string { return "" })
	all := *usual
	all.one = make(map[byte]*decider)
	for kind := range usual.one {
		all.one[kind] = general
	}
	current = &all
	t.Cleanup(func() { current = usual })
	verdicts(t)
	config := suiteOf(startServer(t).client(), new(ratelimittest.Clock))
	config.Histories = histories(6)
	config.Accepts = func(l ratelimit.Limit) bool { // stacks play the other limits, and use only the general case
		some := l.Algorithm == ratelimit.AlgorithmSlidingLog || l.Algorithm == ratelimit.AlgorithmCalendar
		return (some || testsize.Long()) && accepts(l)
	}
	ratelimittest.Run(t, config)
}

func TestShortKeysTakeLittleMemory(t *testing.T) {
	f := newFixture(t)
	l := f.real(ratelimit.TokenBucket(ratelimit.PerMinute(10), 10).Named("api"))
	require.True(t, l.Allow("user:42", 1))
	usage := f.client.MemoryUsage(t.Context(), l.space.key("user:42")).Val()
	assert.LessOrEqual(t, usage, int64(136))
	assert.LessOrEqual(t, f.client.StrLen(t.Context(), l.space.key("user:42")).Val(), int64(44), "a value of up to 44 bytes is kept within its object")
}

// Redis must not drop a key before it is fresh, whatever its last call was.
// The test permits a second, because the state's expiry is in whole seconds.
func TestAKeyStaysUntilItIsFreshAsTimePasses(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		for seed := range uint64(3) {
			rng := rand.New(rand.NewPCG(testsize.Seed(seed), 7))
			l := f.limiter(limit, fmt.Sprint(limit.Name, seed))
			l.store.grace = 0
			var open []*ratelimit.Reservation
			for range 150 {
				f.clock.Advance(time.Duration(rng.IntN(20_000)) * time.Millisecond)
				switch rng.IntN(7) {
				case 0, 1:
					require.NoError(t, l.Adjust(t.Context(), "k", rng.IntN(30)-12))
				case 2:
					if len(open) > 0 {
						require.NoError(t, open[0].Settle(rng.IntN(9)))
						open = open[1:]
					}
				case 3:
					r, err := l.Reserve(t.Context(), "k", 1+rng.IntN(5), time.Duration(rng.IntN(90))*time.Second)
					require.NoError(t, err)
					open = append(open, r)
				case 4:
					changed := limit
					changed.Rate.Units += rng.IntN(5)
					require.NoError(t, l.SetLimit(changed))
					l.Allow("k", 1) // a Peek writes nothing
				default:
					l.Allow("k", 1+rng.IntN(4))
				}
				d, err := l.Peek(t.Context(), "k", 0)
				require.NoError(t, err)
				raw := f.client.Get(t.Context(), l.space.key("k")).Val()
				if d.ResetAfter == 0 || raw == "" {
					continue
				}
				expiry := time.Duration(binary.BigEndian.Uint32([]byte(raw[stateExpiry:]))+1) * time.Second
				fresh := time.Duration(epoch)*time.Microsecond + f.clock.Now() + d.ResetAfter
				require.GreaterOrEqual(t, expiry, fresh, "%v, seed %d", limit, seed)
			}
		}
	}
}

// A settlement does not give back units already given back by a grant.
func TestASettlementAfterAGrantLeavesNoMoreThanTheLimit(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		for _, later := range []time.Duration{0, 61 * time.Second} { // once in the same window, and once in the next
			l := f.limiter(limit, fmt.Sprint("granted", limit.Name, later))
			r, err := l.Reserve(t.Context(), "k", 6, 0)
			require.NoError(t, err)
			f.clock.Advance(later)
			require.True(t, l.Allow("k", 1))
			require.NoError(t, l.Adjust(t.Context(), "k", -9))
			require.NoError(t, r.Cancel())
			assert.Equal(t, 10, f.left(l, "k"), "%v after %v", limit, later)
			assert.True(t, l.Allow("k", 10), "%v after %v", limit, later)
			assert.False(t, l.Allow("k", 1), "%v after %v", limit, later)
		}
	}
}

// Settlements and adjustments, like decisions, record no reading below the highest. When the server's clock has
// stepped back, time stands still for the key until the clock has caught up. All results equal those in memory.
func TestCorrectionsRecordNoEarlierTime(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		for name, correct := range map[string]func(l ratelimit.Limiter[string], r *ratelimit.Reservation) error{
			"settle more": func(_ ratelimit.Limiter[string], r *ratelimit.Reservation) error { return r.Settle(4) },
			"settle less": func(_ ratelimit.Limiter[string], r *ratelimit.Reservation) error { return r.Settle(1) },
			"charge": func(l ratelimit.Limiter[string], _ *ratelimit.Reservation) error {
				return ratelimit.Adjust(t.Context(), l, "k", 2)
			},
			"grant": func(l ratelimit.Limiter[string], _ *ratelimit.Reservation) error {
				return ratelimit.Adjust(t.Context(), l, "k", -2)
			},
		} {
			remote := f.limiter(limit, limit.Name+name)
			memory := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: f.clock}))
			f.clock.Set(time.Hour)
			var made []*ratelimit.Reservation
			for _, l := range []ratelimit.Reserver[string]{memory, remote} {
				r, err := l.Reserve(t.Context(), "k", 3, 0)
				require.NoError(t, err)
				made = append(made, r)
			}
			f.clock.Advance(5 * time.Second)
			require.Equal(t, memory.Allow("k", 2), remote.Allow("k", 2))
			f.clock.Advance(-20 * time.Second)
			require.NoError(t, correct(memory, made[0]))
			require.NoError(t, correct(remote, made[1]))
			for range 12 {
				want, err := memory.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				d, err := remote.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				require.Equal(t, want, d, "%v, %s at %v", limit, name, f.clock.Now())
				f.clock.Advance(3 * time.Second)
			}
		}
	}
}

// A log's running sum starts again before it becomes too large for a script.
func TestALogThatIsNeverIdleCountsOn(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	units := int(min(int64(1)<<52, math.MaxInt)) // on a machine of 32 bits the sum stays small
	l, err := New(f.client, ratelimit.SlidingLog(ratelimit.Per(units, 20*time.Millisecond)), &Options{Name: "large", MaxLog: units, Timeout: 10 * time.Second})
	require.NoError(t, err)
	onClock(l, f.clock)
	for i := range 20 {
		d, err := l.Take(t.Context(), "k", units/2)
		require.NoError(t, err, "%d", i)
		require.True(t, d.Allowed, "%d", i)
		f.clock.Advance(12 * time.Millisecond)
	}
}

// The debt and the cost may each contain a part of a microsecond, and the parts may add up to more than one.
func TestPartsOfAMicrosecondAddUp(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.TokenBucket(ratelimit.PerSecond(7), 7), "sevenths")
	const wait = 714286 * time.Microsecond // five sevenths of a second, rounded up
	require.True(t, l.Allow("k", 6))
	d, err := l.Take(t.Context(), "k", 6)
	require.NoError(t, err)
	require.Equal(t, wait, d.RetryAfter)
	r, err := l.Reserve(t.Context(), "k", 6, wait-time.Microsecond)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	require.Equal(t, time.Microsecond, r.RetryAfter)
	r, err = l.Reserve(t.Context(), "k", 6, wait)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.Equal(t, wait, r.Delay)
}
