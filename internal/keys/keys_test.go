package keys_test

import (
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/keys"
)

type route struct {
	tenant uint32
	path   string
}

func findsWhatWasAdded[K comparable](t *testing.T, a, b K) {
	t.Helper()
	m := keys.NewMap[K, *int](2)
	require.Nil(t, m.Find(a))
	one, two := new(int), new(int)
	m.Add(a, one)
	m.Add(b, two)
	require.Same(t, one, m.Find(a))
	require.Same(t, two, m.Find(b))
	seed := maphash.MakeSeed()
	require.Equal(t, m.Hash(seed, a), m.Hash(seed, a))
	require.NotEqual(t, m.Hash(seed, a), m.Hash(seed, b))
	require.Zero(t, testing.AllocsPerRun(100, func() { m.Find(a) }))
	m.Remove(a)
	m.Remove(a)
	require.Nil(t, m.Find(a))
	require.Same(t, two, m.Find(b))
}

func TestMapFindsKeysOfAnyTypeWithoutAllocating(t *testing.T) {
	findsWhatWasAdded(t, "a", "")
	findsWhatWasAdded(t, 0, -1)
	findsWhatWasAdded(t, route{1, "/"}, route{1, "/a"})
	findsWhatWasAdded(t, netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::1%eth1"))
	findsWhatWasAdded(t, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1"))
	findsWhatWasAdded(t, netip.Addr{}, netip.IPv4Unspecified())
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

// To double a map moves all its keys, and whoever adds or removes one waits for that: hundreds of
// milliseconds at a million keys.
func TestAMapForManyKeysNeverMovesThem(t *testing.T) {
	for _, most := range []int{1<<16 + 1, 1<<18 - 1} {
		m := keys.NewMap[int, *int](most)
		for key := range most {
			m.Add(key, new(int))
		}
		require.Zero(t, m.Plain().Stats().TotalGrowths, "%d keys", most)
	}
}

// Room is made for as many keys as a map may hold without it, or as many as are told, or
// as 128 MB hold: not for all that an option as good as "no bound" allows.
func TestAMapMakesRoomWithinBounds(t *testing.T) {
	for most, buckets := range map[int]int{0: 32, 1: 32, 1 << 16: 32, 1<<16 + 1: 1 << 15, math.MaxInt: 1 << 21} {
		m := keys.NewMap[int, *int](most)
		require.Equal(t, buckets, m.Plain().Stats().RootBuckets, "most %d", most)
	}
}
