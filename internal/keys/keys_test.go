package keys_test

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/keys"
)

type route struct {
	tenant uint32
	path   string
}

func findsWhatWasAdded[K comparable](t *testing.T, a, b K) {
	t.Helper()
	for _, most := range []int{2, math.MaxInt} {
		findsWhatWasAddedTo(t, keys.NewMap[K, *int](most), a, b)
	}
}

func findsWhatWasAddedTo[K comparable](t *testing.T, m *keys.Map[K, *int], a, b K) {
	t.Helper()
	require.Nil(t, m.Find(a))
	one, two := new(int), new(int)
	m.Add(a, one)
	m.Add(b, two)
	require.Same(t, one, m.Find(a))
	require.Same(t, two, m.Find(b))
	require.Equal(t, m.Hash(a), m.Hash(a))
	require.NotEqual(t, m.Hash(a), m.Hash(b))
	require.Zero(t, testing.AllocsPerRun(100, func() { m.Find(a) }))
	m.Remove(a)
	m.Remove(a)
	require.Nil(t, m.Find(a))
	require.Same(t, two, m.Find(b))
}

func TestMapFindsKeysOfAnyTypeWithoutAllocating(t *testing.T) {
	findsWhatWasAdded(t, "a", "")
	findsWhatWasAdded(t, 0, -1)
	findsWhatWasAdded[uint32](t, 0, 1)
	findsWhatWasAdded[int8](t, 0, -1)
	findsWhatWasAdded(t, route{1, "/"}, route{1, "/a"})
	findsWhatWasAdded(t, netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::1%eth1"))
	findsWhatWasAdded(t, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1"))
	findsWhatWasAdded(t, netip.Addr{}, netip.IPv4Unspecified())
}

// Equal keys may have different bits, and keys with equal bits may differ.
func TestKeysAreEqualAsGoComparesThem(t *testing.T) {
	negative := math.Copysign(0, -1)
	areEqual(t, 0.0, negative)
	areEqual(t, complex64(0), complex64(complex(negative, negative)))
	areEqual(t, [2]float32{0, 1}, [2]float32{float32(negative), 1})
	areEqual(t, struct {
		path string
		part any
	}{"/a", 0.0}, struct {
		path string
		part any
	}{strings.Clone("/a"), negative})
	areEqual[any](t, "text", strings.Clone("text"))
	areEqual(t, struct {
		a uint8
		b uint64
	}{1, 2}, *fill(0xff, 1, 2))
	areEqual(t, netip.MustParseAddr("fe80::1%a"), netip.MustParseAddr("fe80::1%"+strings.Clone("a")))

	m := keys.NewMap[float64, int](2)
	nan := math.NaN()
	m.Add(nan, 1)
	require.Nil(t, m.Lookup(nan), "it does not equal itself")
	m.Remove(nan)
	require.Equal(t, 1, m.Len())

	other := keys.NewMap[any, int](2)
	other.Add(1, 1)
	require.Nil(t, other.Lookup(int64(1)), "another type")
}

func areEqual[K comparable](t *testing.T, a, b K) {
	t.Helper()
	m := keys.NewMap[K, int](2)
	e, _ := m.Add(a, 1)
	require.Same(t, e, m.Lookup(b))
	again, added := m.Add(b, 2)
	require.Same(t, e, again)
	require.False(t, added)
	m.Remove(b)
	require.Nil(t, m.Lookup(a))
}

// fill returns a struct with bits set in its padding.
func fill(bits byte, a uint8, b uint64) *struct {
	a uint8
	b uint64
} {
	var x struct {
		a uint8
		b uint64
	}
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&x)), unsafe.Sizeof(x))
	for i := range raw {
		raw[i] = bits
	}
	x.a, x.b = a, b
	return &x
}

func TestOnlyKeysWithInterfacesMayFailToBeComparable(t *testing.T) {
	require.True(t, keys.HoldInterfaces[any]())
	require.True(t, keys.HoldInterfaces[[2]fmt.Stringer]())
	require.True(t, keys.HoldInterfaces[struct{ inner struct{ v any } }]())
	require.False(t, keys.HoldInterfaces[route]())
	require.False(t, keys.HoldInterfaces[*any]())

	require.True(t, keys.CanCompare[any](1))
	require.False(t, keys.CanCompare[any]([]int{1}))
	require.False(t, keys.CanCompare([2]any{1, map[int]int{}}))
}
