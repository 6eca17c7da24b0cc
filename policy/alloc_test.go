//go:build !race

package policy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
)

func TestADenialAllocatesNothing(t *testing.T) {
	p, err := policy.New(parsed(t, "rules: [{name: api, key: user, limit: fixed-window 1/h}]"), nil)
	require.NoError(t, err)
	ann := policy.Request(policy.Attributes{"user": "ann"})
	p.Allow(ann, 1)
	assert.Zero(t, testing.AllocsPerRun(200, func() { p.Allow(ann, 1) }))
	assert.Zero(t, testing.AllocsPerRun(200, func() { _, _ = p.Take(t.Context(), ann, 1) }))
}
