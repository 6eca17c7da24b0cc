//lint:file-ignore SA4006 The page leaves out what a program does with errors.

package fair_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
)

// The code of README.md.
func TestTheCodeOfTheReadme(t *testing.T) {
	ctx, tenant, estimate := context.Background(), "gold", 100
	plans := map[string]struct{ Weight int }{tenant: {3}}
	take := func() (ratelimit.Decision, *ratelimit.Reservation, error) {
		limiter, err := fair.New(ratelimit.TokenBucket(ratelimit.PerSecond(1000), 2500), &fair.Options[string]{
			Weight: func(tenant string) int { return plans[tenant].Weight }, // if nil, each tenant weighs 1
		})
		d, err := limiter.Take(ctx, tenant, 1)                             // at once: yes, or no with a RetryAfter
		err = limiter.Wait(ctx, tenant, 1)                                 // waits in line
		res, err := limiter.Reserve(ctx, tenant, estimate, 20*time.Second) // waits in line, and is settled at the real cost
		return d, res, err
	}
	d, res, err := take()
	require.NoError(t, err)
	require.True(t, d.Allowed)
	require.True(t, res.Allowed)
}
