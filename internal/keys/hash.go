package keys

import (
	"hash/maphash"
	"math/bits"
	"net/netip"
	"reflect"
	"unsafe"
)

// hasher hashes keys. Equal keys have equal hashes. Each hasher has
// its own seed, so clients cannot choose keys with colliding hashes.
//
// maphash.Comparable moves keys with pointers to the heap. The only common key type with pointers is
// netip.Addr, so it is hashed by its bytes instead. Integers are hashed inline: this is faster than a call.
type hasher[K comparable] struct {
	kind   hashKind
	k0, k1 uint64 // for integers
	seed   maphash.Seed
}

type hashKind uint8

const (
	hashAny hashKind = iota
	hash64           // integers of 64 bits
	hash32           // integers of 32 bits
	hashAddr
)

func newHasher[K comparable]() hasher[K] {
	h := hasher[K]{seed: maphash.MakeSeed()}
	h.k0, h.k1 = maphash.Comparable(h.seed, 0), maphash.Comparable(h.seed, 1)
	t := reflect.TypeFor[K]()
	switch t.Kind() {
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		h.kind = hash32
		if t.Size() == 8 {
			h.kind = hash64
		}
	}
	if t == reflect.TypeFor[netip.Addr]() {
		h.kind = hashAddr
	}
	return h
}

func (h *hasher[K]) hash(key K) uint64 {
	switch h.kind {
	case hash64:
		return h.mix(*(*uint64)(unsafe.Pointer(&key)))
	case hash32:
		return h.mix(uint64(*(*uint32)(unsafe.Pointer(&key))))
	case hashAddr:
		return h.addr(*(*netip.Addr)(unsafe.Pointer(&key)))
	}
	return maphash.Comparable(h.seed, key)
}

// mix hashes a number.
func (h *hasher[K]) mix(x uint64) uint64 {
	hi, lo := bits.Mul64(x^h.k0, h.k1|1)
	hi, lo = bits.Mul64(hi^lo^h.k1, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

// addr hashes an address without its pointer.
func (h *hasher[K]) addr(a netip.Addr) uint64 {
	bare := struct {
		ip   [16]byte
		bits int // 0 for the zero Addr
	}{a.As16(), a.BitLen()}
	x := maphash.Comparable(h.seed, bare)
	if zone := a.Zone(); zone != "" {
		x = h.mix(x ^ maphash.String(h.seed, zone))
	}
	return x
}
