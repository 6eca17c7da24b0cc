package keys_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/internal/keys"
)

func valuesAreAll[K comparable](t *testing.T, a, b K) {
	m := keys.NewMap[K, int](2)
	assert.Empty(t, slices.Collect(m.Values()))
	m.Add(a, 1)
	m.Add(b, 2)
	assert.ElementsMatch(t, []int{1, 2}, slices.Collect(m.Values()))
	for range m.Values() {
		break // an iterator that ends early
	}
}

func TestValuesAreThoseOfAllKeys(t *testing.T) {
	valuesAreAll(t, "a", "b")
	valuesAreAll(t, netip.IPv4Unspecified(), netip.IPv6Unspecified())
}
