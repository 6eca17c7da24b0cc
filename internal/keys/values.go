package keys

import "iter"

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
