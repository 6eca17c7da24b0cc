package failover_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// The primary has a quota for each day in a time zone, and the stand-in a smaller one. The store fails
// and recovers for hours. A model counts both quotas' grants by date, and each answer equals the model's.
func TestAQuotaByTheCalendarFailsOver(t *testing.T) {
	const most, least = 8, 3
	zone, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(testsize.Seed(seed), 1))
			day := ratelimit.Day("America/New_York")
			time.Sleep(time.Duration(r.Int64N(int64(300 * 24 * time.Hour)))) // some seeds begin before a change of the clocks
			s := newStore(t, ratelimit.Calendar(most, day).Named("shared"))
			own := failover.Options{OpenFor: time.Duration(1+r.IntN(90)) * time.Minute, Failures: 1 + r.IntN(3)}
			l := over(t, unadjusted{s}, newLocal(t, ratelimit.Calendar(least, day)), own)
			type spender struct {
				date, key string
				degraded  bool
			}
			used, degraded := map[spender]int{}, 0
			for range 400 {
				switch r.IntN(12) {
				case 0:
					s.fail(down)
				case 1:
					s.fail(nil)
				case 2, 3:
					time.Sleep(time.Duration(r.Int64N(int64(15 * time.Hour))))
				}
				now := time.Now().In(zone)
				midnight := time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, zone).Sub(now)
				key, cost := string(rune('a'+r.IntN(2))), 1+r.IntN(most+1)
				d, err := l.Take(t.Context(), key, cost)
				if cost > most {
					require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
					continue
				}
				require.NoError(t, err)
				units := most
				if d.Degraded {
					units = least
					degraded++
				}
				who := spender{now.Format(time.DateOnly), key, d.Degraded}
				require.Equal(t, used[who]+cost <= units, d.Allowed, "seed %d: %v, %d of %d and %d: %+v", seed, now, used[who], units, cost, d)
				if d.Allowed {
					used[who] += cost
				}
				switch {
				case d.Allowed:
					require.Zero(t, d.RetryAfter)
				case cost > units: // only the store could ever allow this cost
					require.Equal(t, own.OpenFor, d.RetryAfter)
				default:
					require.Equal(t, midnight, d.RetryAfter)
				}
				require.Equal(t, units-used[who], d.Remaining)
				if used[who] > 0 {
					require.Equal(t, midnight, d.ResetAfter)
				}
				if d.Degraded {
					require.Equal(t, least, d.Limit.Rate.Units)
				} else {
					require.Equal(t, "shared", d.Limit.Name)
				}
			}
			require.NotZero(t, degraded)
		})
	}
}
