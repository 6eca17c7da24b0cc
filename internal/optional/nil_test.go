package optional_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/optional"
)

type table map[string]int

func (t table) Len() int { return len(t) }

func TestNilPointersAndFunctionsAreNil(t *testing.T) {
	require.True(t, optional.IsNil(nil))
	require.True(t, optional.IsNil((*int)(nil)))
	require.True(t, optional.IsNil((func())(nil)))

	require.False(t, optional.IsNil(0))
	require.False(t, optional.IsNil(new(int)))
	require.False(t, optional.IsNil(func() {}))
	require.False(t, optional.IsNil(table(nil)), "its methods work")
	require.False(t, optional.IsNil(struct{}{}))
}
