package ratelimit_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// operated is a limiter whose limit an operator changes.
type operated struct {
	*ratelimit.Keyed[string]
	t     *testing.T
	stack *ratelimit.Layered[string] // nil if the calls wait for this limiter alone
	limit atomic.Pointer[ratelimit.Limit]
	open  atomic.Int64 // the tokens that open calls will give back
}

func (o *operated) set(limit ratelimit.Limit) {
	o.limit.Store(&limit)
	require.NoError(o.t, o.SetLimit(limit))
}

// rate returns the limit's tokens per second.
func (o *operated) rate() float64 {
	r := o.limit.Load().Rate
	return float64(r.Units) / r.Per.Seconds()
}

// begin waits until a call may begin, and returns the function settling its estimate.
func (o *operated) begin(ctx context.Context, user string, estimate int) (settle func(actual int) error, err error) {
	if o.stack != nil {
		return func(actual int) error { return o.stack.Adjust(context.Background(), user, actual-estimate) }, o.stack.Wait(ctx, user, estimate)
	}
	r, err := o.Reserve(ctx, "k", estimate, 10*time.Minute)
	if err != nil {
		return nil, err
	}
	return r.Settle, r.Wait(ctx)
}

// gateway plays calls to a language model. Callers wait in line with estimates of 1,000 to 8,000 tokens, and use a
// quarter on average. Some leave. Each minute an operator acts, and returns how many tokens this allows beyond the
// limit's own. gateway returns the tokens used after the first minute, which uses up the burst, and the tokens allowed.
//
// In a stack the calls also wait for their user's budget. One user has none left.
func gateway(t *testing.T, stacked bool, callers, minutes int, operate func(ctx context.Context, l *operated) (extra int)) (used, allowed float64) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.TokenBucket(ratelimit.PerMinute(100_000), 100_000)
		l := &operated{Keyed: ratelimit.Must(ratelimit.New[string](limit, nil)), t: t}
		l.limit.Store(&limit)
		if stacked {
			users := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(40_000), 40_000), nil))
			require.NoError(t, users.Adjust(t.Context(), "0", 1_000_000_000))
			all := ratelimit.By(l.Keyed, func(string) (string, error) { return "k", nil })
			l.stack = ratelimit.Must(ratelimit.All(ratelimit.By(users, func(u string) (string, error) { return u, nil }), all))
		}
		ctx, end := context.WithCancel(t.Context())
		var (
			mu sync.Mutex
			wg sync.WaitGroup
		)
		for i := range callers {
			random, user := rand.New(rand.NewPCG(68, uint64(i))), strconv.Itoa(i%10)
			wg.Go(func() {
				for ctx.Err() == nil {
					estimate := 1000 + random.IntN(7001)
					patience, leave := context.WithTimeout(ctx, time.Duration(5+random.IntN(120))*time.Second)
					settle, err := l.begin(patience, user, estimate)
					leave()
					if err != nil {
						time.Sleep(time.Second)
						continue
					}
					share := random.Float64()
					actual := int(float64(estimate) * share * share * share)
					counts := l.limit.Load().Algorithm == ratelimit.AlgorithmTokenBucket
					if counts {
						mu.Lock()
						used += float64(actual)
						mu.Unlock()
						l.open.Add(int64(estimate - actual))
					}
					time.Sleep(time.Duration(random.Int64N(int64(6 * time.Second))))
					_ = settle(actual)
					if counts {
						l.open.Add(int64(actual - estimate))
					}
				}
			})
		}
		time.Sleep(time.Minute)
		mu.Lock()
		used = 0
		mu.Unlock()
		for range minutes - 1 {
			begin, rate := time.Now(), l.rate()
			allowed += float64(operate(ctx, l))
			allowed -= rate * time.Since(begin).Seconds() // time under another limit does not count
			time.Sleep(time.Until(begin.Add(time.Minute)))
			allowed += l.rate() * 60
		}
		end()
		wg.Wait()
	})
	t.Logf("%d callers: %.1f %% used", callers, 100*used/allowed)
	return used, allowed
}

// crowds returns a test's numbers of callers, and its length in minutes.
func crowds() (callers []int, minutes int) {
	if testsize.Race { // fewer callers show the race detector the same races
		return []int{60}, 5
	}
	return testsize.Of([]int{60}, []int{60, 200}), 60
}

// An operator grants or charges tokens, or refreshes the key's limit.
func TestAnHourOfCallsInLineUsesTheLimitWhileTokensAreGrantedAndCharged(t *testing.T) {
	testsize.Extra(t)
	all, minutes := crowds()
	for _, callers := range all {
		rnd := rand.New(rand.NewPCG(68, uint64(callers)))
		used, allowed := gateway(t, false, callers, minutes, func(ctx context.Context, l *operated) int {
			extra := 0
			switch rnd.IntN(3) {
			case 1:
				extra = 5000
			case 2:
				extra = -5000
			default:
				l.Refresh("k")
			}
			require.NoError(t, l.Adjust(ctx, "k", -extra))
			return extra
		})
		require.GreaterOrEqual(t, used, .95*allowed)
		require.LessOrEqual(t, used, allowed+100_000)
	}
}

// An operator raises and lowers the limit, blocks the key or lifts its limit for a moment, grants tokens, and resets the key.
func TestAnHourOfCallsInLineUsesTheLimitsWhateverTheOperatorDoes(t *testing.T) {
	testsize.Extra(t)
	all, minutes := crowds()
	for _, callers := range all {
		const mixed = 7
		for what := range mixed + 1 {
			rnd := rand.New(rand.NewPCG(68, uint64(callers)))
			minutes := minutes
			if what < mixed {
				minutes = min(minutes, testsize.Of(12, 60))
			}
			used, allowed := gateway(t, false, callers, minutes, func(ctx context.Context, l *operated) int {
				bucket := func(tokens int) ratelimit.Limit {
					return ratelimit.TokenBucket(ratelimit.PerMinute(tokens), 100_000)
				}
				now := *l.limit.Load()
				do := what
				if what == mixed {
					do = rnd.IntN(mixed)
				}
				switch do {
				case 0:
					l.set(bucket(100_000 + rnd.IntN(50_001)))
				case 1:
					l.set(bucket(50_000 + rnd.IntN(50_001)))
				case 2:
					l.set(bucket(99_000 + rnd.IntN(2001)))
				case 3, 4:
					l.set([]ratelimit.Limit{ratelimit.Blocked(), ratelimit.Unlimited()}[do-3])
					time.Sleep(time.Duration(1+rnd.IntN(2000)) * time.Millisecond)
					l.set(now)
				case 5:
					require.NoError(t, l.Adjust(ctx, "k", -5000))
					return 5000
				case 6:
					require.NoError(t, l.Reset(ctx, "k"))      // afterwards, the calls under way give nothing back
					return 100_000 - int(l.open.Load()) - 8000 // fewer are left than the line's first call needs
				}
				return 0
			})
			assert.GreaterOrEqual(t, used, .95*allowed, "action %d", what)
		}
	}
}

// On a stack, calls go from one key's line to another's. An operator raises and
// lowers the users' shared limit, blocks the key for a moment, and grants tokens.
func TestAnHourOfCallsInLineUsesTheLimitsOfAStack(t *testing.T) {
	all, minutes := crowds()
	for _, callers := range all {
		rnd := rand.New(rand.NewPCG(68, uint64(callers)))
		used, allowed := gateway(t, true, callers, minutes, func(ctx context.Context, l *operated) int {
			now := *l.limit.Load()
			switch rnd.IntN(3) {
			case 0:
				l.set(ratelimit.TokenBucket(ratelimit.PerMinute(50_000+rnd.IntN(100_001)), 100_000))
			case 1:
				l.set(ratelimit.Blocked())
				time.Sleep(time.Duration(1+rnd.IntN(2000)) * time.Millisecond)
				l.set(now)
			case 2:
				require.NoError(t, l.Adjust(ctx, "k", -5000))
				return 5000
			}
			return 0
		})
		assert.GreaterOrEqual(t, used, .95*allowed)
		assert.LessOrEqual(t, used, 1.05*allowed)
	}
}
