package ratelimit

import (
	"hash/maphash"
	"net/netip"

	"github.com/puzpuzpuz/xsync/v4"
)

// index finds buckets by key. Keys with pointers have to be moved to the heap to be
// hashed; netip.Addr, the one such type that many will use, is taken apart instead.
type index[K comparable] struct {
	buckets *xsync.Map[K, *account]
	addrs   *xsync.Map[addr, *account] // instead of buckets, if K is netip.Addr
}

// addr is a netip.Addr without a pointer.
type addr struct {
	ip   [16]byte
	bits uint8 // 0 for the zero Addr, else 32 or 128
	zone string
}

func newIndex[K comparable]() index[K] {
	if _, ok := any(*new(K)).(netip.Addr); ok {
		return index[K]{addrs: xsync.NewMap[addr, *account]()}
	}
	return index[K]{buckets: xsync.NewMap[K, *account]()}
}

// toAddr returns a key that is known to be a netip.Addr as an addr.
func toAddr[K comparable](key K) addr {
	a := any(key).(netip.Addr)
	return addr{ip: a.As16(), bits: uint8(a.BitLen()), zone: a.Zone()}
}

func (x *index[K]) find(key K) *account {
	if x.addrs != nil {
		b, _ := x.addrs.Load(toAddr(key))
		return b
	}
	b, _ := x.buckets.Load(key)
	return b
}

func (x *index[K]) add(key K, b *account) {
	if x.addrs != nil {
		x.addrs.Store(toAddr(key), b)
		return
	}
	x.buckets.Store(key, b)
}

func (x *index[K]) remove(key K) {
	if x.addrs != nil {
		x.addrs.Delete(toAddr(key))
		return
	}
	x.buckets.Delete(key)
}

func (x *index[K]) hash(seed maphash.Seed, key K) uint64 {
	if x.addrs != nil {
		return maphash.Comparable(seed, toAddr(key))
	}
	return maphash.Comparable(seed, key)
}
