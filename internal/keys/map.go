// Package keys finds values by keys of any comparable type, without a lock and
// without allocating. It is what the limiters of this module share.
package keys

import (
	"hash/maphash"
	"net/netip"

	"github.com/puzpuzpuz/xsync/v4"
)

// Map finds values by key. Keys with pointers have to be moved to the heap to be
// hashed; netip.Addr, the one such type that many use, is taken apart instead. It is
// safe for concurrent use. The zero Map cannot be used.
type Map[K comparable, V any] struct {
	values *xsync.Map[K, V]
	addrs  *xsync.Map[addr, V] // instead of values, if K is netip.Addr
}

// addr is a netip.Addr without a pointer.
type addr struct {
	ip   [16]byte
	bits uint8 // 0 for the zero Addr, else 32 or 128
	zone string
}

// grows is how many keys a map may hold that grows as they come. To double it moves all its keys,
// and all who add or remove one wait for that: a few milliseconds for so many.
const grows = 1 << 16

// mostMade bounds the room that is made in advance, to 128 MB.
const mostMade = 1 << 22

// NewMap returns an empty Map for up to most keys. For more than a map may hold that grows, it
// makes room at once, 32 to 64 bytes for each of most: an insertion that doubles a map of a
// million keys takes hundreds of milliseconds. Of room that is not used, the operating
// system provides no memory.
func NewMap[K comparable, V any](most int) Map[K, V] {
	var room []func(*xsync.MapConfig)
	if most > grows {
		room = append(room, xsync.WithPresize(min(most, mostMade)))
	}
	if _, ok := any(*new(K)).(netip.Addr); ok {
		return Map[K, V]{addrs: xsync.NewMap[addr, V](room...)}
	}
	return Map[K, V]{values: xsync.NewMap[K, V](room...)}
}

// toAddr returns a key that is known to be a netip.Addr as an addr.
func toAddr[K comparable](key K) addr {
	a := any(key).(netip.Addr)
	return addr{ip: a.As16(), bits: uint8(a.BitLen()), zone: a.Zone()}
}

// Plain returns the map behind this one, if keys are looked up in it as they are; else nil. Where
// each nanosecond counts, to look up in it saves the call of Find.
func (m *Map[K, V]) Plain() *xsync.Map[K, V] { return m.values }

// Find returns the key's value, or the zero value if there is none.
func (m *Map[K, V]) Find(key K) V {
	if m.addrs != nil {
		v, _ := m.addrs.Load(toAddr(key))
		return v
	}
	v, _ := m.values.Load(key)
	return v
}

// Add sets the key's value.
func (m *Map[K, V]) Add(key K, v V) {
	if m.addrs != nil {
		m.addrs.Store(toAddr(key), v)
		return
	}
	m.values.Store(key, v)
}

// Remove removes the key, if it is there.
func (m *Map[K, V]) Remove(key K) {
	if m.addrs != nil {
		m.addrs.Delete(toAddr(key))
		return
	}
	m.values.Delete(key)
}

// Hash returns the key's hash under the seed.
func (m *Map[K, V]) Hash(seed maphash.Seed, key K) uint64 {
	if m.addrs != nil {
		return maphash.Comparable(seed, toAddr(key))
	}
	return maphash.Comparable(seed, key)
}
