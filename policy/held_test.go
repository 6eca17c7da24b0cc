package policy_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/policy"
)

// Middleware holds a request for the delay of a leaky bucket, and refunds its charge if its client leaves.
func TestRequestsOfALeakyBucketAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policies := ratelimit.Must(policy.New(ratelimit.Must(policy.Parse([]byte("rules:\n- {name: a, limit: leaky-bucket 2/s queue 5}"))), nil))
		of := func(r *http.Request) (policy.Request, error) { return policy.HTTP(r, nil), nil }
		limit := ratelimit.Must(httplimit.New(ratelimit.Map(policies, of), &httplimit.Options{Settle: httplimit.RefundServerErrors}))
		handler := limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for range 3 {
			go func() {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				assert.Equal(t, http.StatusOK, w.Code)
			}()
		}
		synctest.Wait()
		ctx, leave := context.WithCancel(t.Context())
		go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
		synctest.Wait()
		left := func() int {
			d, err := policies.Peek(t.Context(), policy.Subject{Rule: "a"}, 0)
			require.NoError(t, err)
			return d.Remaining
		}
		assert.Equal(t, 1, left())
		leave()
		synctest.Wait()
		assert.Equal(t, 2, left())
		time.Sleep(time.Minute)
	})
}
