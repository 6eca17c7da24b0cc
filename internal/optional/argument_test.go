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
		"lease: Options.MaxBatch is 0, want at least 1":                                 optional.AtLeastOne("lease: Options.MaxBatch", 0),
		"ratelimit: Options.Remember is -1, want 1 to 9, or 0 for none":                 optional.Within("ratelimit: Options.Remember", -1, 9, "none"),
		"redislimit: Total is 10, want 1 to 9, or 0 for none":                           optional.Within("redislimit: Total", 10, 9, "none"),
		"httplimit: this Middleware is nil or zero: make one with New, PerIP or PerKey": optional.Zero("httplimit", "Middleware", "New, PerIP or PerKey"),
		"this Layer is nil or zero: make one with By or Global":                         optional.Zero("", "Layer", "By or Global"),
	} {
		assert.EqualError(t, err, want)
	}
	assert.NoError(t, optional.NilInside("fair: Options.Clock", nil))
	assert.NoError(t, optional.NilInside("fair: Options.Clock", new(int)))
	assert.NoError(t, optional.NotNegative("inflight: Options.Total", 0, "none"))
	assert.NoError(t, optional.NotNegative("inflight: Options.Total", 1, "none"))
	assert.NoError(t, optional.AtLeastOne("lease: Options.MaxBatch", 1))
	assert.NoError(t, optional.Within("ratelimit: Options.Remember", 0, 9, "none"))
	assert.NoError(t, optional.Within("ratelimit: Options.Remember", 9, 9, "none"))
}
