package nilcheck_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/nilcheck"
)

type table map[string]int

func (t table) Len() int { return len(t) }

func TestNilPointersAndFunctionsAreNil(t *testing.T) {
	require.True(t, nilcheck.IsNil(nil))
	require.True(t, nilcheck.IsNil((*int)(nil)))
	require.True(t, nilcheck.IsNil((func())(nil)))

	require.False(t, nilcheck.IsNil(0))
	require.False(t, nilcheck.IsNil(new(int)))
	require.False(t, nilcheck.IsNil(func() {}))
	require.False(t, nilcheck.IsNil(table(nil)), "its methods work")
	require.False(t, nilcheck.IsNil(struct{}{}))
}
