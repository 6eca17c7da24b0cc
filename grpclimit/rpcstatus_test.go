package grpclimit_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// TestStatusIsEncodedAsByProtobuf compares the status of httplimit's answers, which is encoded without a protobuf library, with the
// library's reading of it.
func TestStatusIsEncodedAsByProtobuf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	waits := []time.Duration{0, -time.Second, 1, time.Millisecond, 999 * time.Millisecond, time.Second, time.Hour, math.MaxInt64}
	for i := range 2000 {
		wait := time.Duration(r.Int64N(1 << r.IntN(62)))
		if i < len(waits) {
			wait = waits[i]
		}
		limit := ratelimit.FixedWindow(ratelimit.Per(1+r.IntN(1<<r.IntN(31)), time.Minute))
		if r.IntN(2) == 0 {
			limit = limit.Named(fmt.Sprintf("limit-%d", i))
		}
		text := rpcstatus.TextOf(&limit)
		a := rpcstatus.Answer{Code: rpcstatus.ResourceExhausted, Message: text.Denied, Wait: wait, Limit: text}

		var s spb.Status
		require.NoError(t, proto.Unmarshal(a.AppendStatus(nil), &s))
		assert.EqualValues(t, 8, s.Code)
		assert.Equal(t, text.Denied, s.Message)
		if wait > 0 {
			m, err := s.Details[0].UnmarshalNew()
			require.NoError(t, err)
			delay := m.(*errdetails.RetryInfo).RetryDelay
			require.NoError(t, delay.CheckValid())
			assert.GreaterOrEqual(t, delay.AsDuration(), wait, "never too early")
			assert.Less(t, delay.AsDuration()-wait, time.Millisecond)
			s.Details = s.Details[1:]
		}
		require.Len(t, s.Details, 1)
		m, err := s.Details[0].UnmarshalNew()
		require.NoError(t, err)
		violation := m.(*errdetails.QuotaFailure).Violations[0]
		assert.EqualValues(t, limit.Capacity(), violation.QuotaValue)
		assert.Equal(t, violation.Subject, violation.QuotaId)
		assert.Equal(t, fmt.Sprintf("%d per 1m0s, %d at once", limit.Rate.Units, limit.Rate.Units), violation.Description)
	}
}
