package fair

// heap is a binary heap of tenants, in the order of a figure that may wrap round.
type heap[K comparable] struct {
	items []*tenant[K]
	by    func(*tenant[K]) uint64
	index func(*tenant[K]) *int // where a tenant keeps its place, −1 for none
}

func (h *heap[K]) len() int { return len(h.items) }

// first returns the tenant on top, or nil.
func (h *heap[K]) first() *tenant[K] {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0]
}

// second returns the tenant that would be on top without the first, or nil.
func (h *heap[K]) second() *tenant[K] {
	switch {
	case len(h.items) < 2:
		return nil
	case len(h.items) > 2 && h.less(2, 1):
		return h.items[2]
	}
	return h.items[1]
}

func (h *heap[K]) add(t *tenant[K]) {
	*h.index(t) = len(h.items)
	h.items = append(h.items, t)
	h.up(len(h.items) - 1)
}

func (h *heap[K]) remove(t *tenant[K]) {
	i, last := *h.index(t), len(h.items)-1
	if i != last {
		h.swap(i, last)
	}
	h.items[last] = nil
	h.items = h.items[:last]
	*h.index(t) = -1
	if i != last {
		h.down(h.up(i))
	}
}

// fix restores the order after a tenant's figure has changed.
func (h *heap[K]) fix(t *tenant[K]) { h.down(h.up(*h.index(t))) }

func (h *heap[K]) less(i, j int) bool { return int64(h.by(h.items[i])-h.by(h.items[j])) < 0 }

func (h *heap[K]) swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	*h.index(h.items[i]), *h.index(h.items[j]) = i, j
}

func (h *heap[K]) up(i int) int {
	for i > 0 {
		above := (i - 1) / 2
		if !h.less(i, above) {
			break
		}
		h.swap(i, above)
		i = above
	}
	return i
}

func (h *heap[K]) down(i int) {
	for {
		least := 2*i + 1
		if least >= len(h.items) {
			return
		}
		if right := least + 1; right < len(h.items) && h.less(right, least) {
			least = right
		}
		if !h.less(least, i) {
			return
		}
		h.swap(i, least)
		i = least
	}
}
