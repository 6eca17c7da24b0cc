package grpclimit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

// A call that the server refuses before it is processed costs the own budget nothing: its repetition is sent within the same hour.
func TestARefusedCallCostsTheOwnBudgetNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScript(once(denial(time.Second)))
		client, _ := pacedInBubble(t, s, byTarget(t, ratelimit.FixedWindow(ratelimit.PerHour(2))), grpclimit.ClientOptions{MaxRetries: 1})
		ok(t.Context(), t, client, "unary")
		ok(t.Context(), t, client, "unary")
		assert.Equal(t, []time.Duration{0, time.Second, time.Second}, s.times())
	})
}
