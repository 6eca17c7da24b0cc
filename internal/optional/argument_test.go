package optional_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/internal/optional"
)

func TestMisuseHasOneTextEach(t *testing.T) {
	var none *int
	for want, err := range map[string]error{
		"lease: New: remoteLimiter is nil":                                              optional.Nil("lease: New: remoteLimiter"),
		"fair: Options.Clock holds a nil *int: give nil itself for none":                optional.NilInside("fair: Options.Clock", none),
		"inflight: Options.Total is -1, want 0 for none, or more":                       optional.NotNegative("inflight: Options.Total", -1, "none"),
		"httplimit: Options.Jitter is -1ns, want 0 or more":                             optional.NotNegative("httplimit: Options.Jitter", -time.Nanosecond, ""),
		"httplimit: this Middleware is nil or zero: make one with New, PerIP or PerKey": optional.Zero("httplimit", "Middleware", "New, PerIP or PerKey"),
		"this Layer is nil or zero: make one with By or Global":                         optional.Zero("", "Layer", "By or Global"),
	} {
		assert.EqualError(t, err, want)
	}
	assert.NoError(t, optional.NilInside("fair: Options.Clock", nil))
	assert.NoError(t, optional.NilInside("fair: Options.Clock", new(int)))
	assert.NoError(t, optional.NotNegative("inflight: Options.Total", 0, "none"))
	assert.NoError(t, optional.NotNegative("inflight: Options.Total", 1, "none"))
}
