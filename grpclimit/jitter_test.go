package grpclimit_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

func TestTheTrailerHasTheSameWaitAsRetryInfo(t *testing.T) {
	i := interceptor(t, &stub{decision: ratelimit.Decision{RetryAfter: time.Hour}}, grpclimit.Options{
		Jitter: time.Minute, JitterBy: func(c *grpclimit.Call) string { return c.FullMethod },
	})
	a := call(context.Background(), serve(t, &service{}, with(i)...))
	require.Len(t, a.pushback, 1)
	assert.Equal(t, strconv.FormatInt(a.retry.RetryDelay.AsDuration().Milliseconds(), 10), a.pushback[0])
}
