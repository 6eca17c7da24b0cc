package keys

import (
	"iter"
	"net/netip"
)

// Values returns an iterator over the values, in no order. What is added or removed
// meanwhile may be left out or not.
func (m *Map[K, V]) Values() iter.Seq[V] {
	return func(yield func(V) bool) {
		if m.addrs != nil {
			m.addrs.Range(func(_ addr, v V) bool { return yield(v) })
			return
		}
		m.values.Range(func(_ K, v V) bool { return yield(v) })
	}
}

// All returns an iterator over the keys and values, in no order. A key that is in the map all the time is
// yielded once. What is added or removed meanwhile is yielded once or not at all, and a value that
// was removed may be yielded. No lock is held in the body.
func (m *Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if m.addrs != nil {
			m.addrs.Range(func(a addr, v V) bool { return yield(any(a.key()).(K), v) })
			return
		}
		m.values.Range(yield)
	}
}

// key returns the netip.Addr that toAddr was given.
func (a addr) key() netip.Addr {
	switch a.bits {
	case 0:
		return netip.Addr{}
	case 32:
		return netip.AddrFrom16(a.ip).Unmap()
	}
	return netip.AddrFrom16(a.ip).WithZone(a.zone)
}
