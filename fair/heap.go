package fair

// heap is a binary heap of tenants. Each item holds its key, so a comparison reads no tenant. Keys may wrap around.
type heap[K comparable] struct {
	items []item[K]
	kind  kind
}

type item[K comparable] struct {
	key    uint64
	tenant *tenant[K]
}

// kind identifies a heap. A tenant may be in one heap of each kind.
type kind int

const (
	byDue     kind = iota // tenants with a debt
	byTag                 // the line: tenants with waiters or with places
	byExpires             // tenants with deadlines
	kinds
)

func (h *heap[K]) len() int { return len(h.items) }

func (h *heap[K]) has(t *tenant[K]) bool { return t.index[h.kind] >= 0 }

// first returns the tenant on top, or nil.
func (h *heap[K]) first() *tenant[K] {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0].tenant
}

// second returns the top tenant without the first, or nil.
func (h *heap[K]) second() *tenant[K] {
	switch {
	case len(h.items) < 2:
		return nil
	case len(h.items) > 2 && h.before(h.items[2].key, h.items[1].key):
		return h.items[2].tenant
	}
	return h.items[1].tenant
}

func (h *heap[K]) add(t *tenant[K], key uint64) {
	h.items = append(h.items, item[K]{})
	h.up(len(h.items)-1, item[K]{key, t})
}

func (h *heap[K]) remove(t *tenant[K]) {
	i, last := t.index[h.kind], len(h.items)-1
	moved := h.items[last]
	h.items[last] = item[K]{}
	h.items = h.items[:last]
	t.index[h.kind] = -1
	if i != last {
		h.settle(i, moved)
	}
}

// fix changes a tenant's key.
func (h *heap[K]) fix(t *tenant[K], key uint64) { h.settle(t.index[h.kind], item[K]{key, t}) }

func (h *heap[K]) before(a, b uint64) bool { return int64(a-b) < 0 }

func (h *heap[K]) put(i int, x item[K]) {
	h.items[i] = x
	x.tenant.index[h.kind] = i
}

// settle puts an item into the free cell i, or into its own cell above or below.
func (h *heap[K]) settle(i int, x item[K]) {
	if i > 0 && h.before(x.key, h.items[(i-1)/2].key) {
		h.up(i, x)
	} else {
		h.down(i, x)
	}
}

func (h *heap[K]) up(i int, x item[K]) {
	for i > 0 {
		above := (i - 1) / 2
		if !h.before(x.key, h.items[above].key) {
			break
		}
		h.put(i, h.items[above])
		i = above
	}
	h.put(i, x)
}

func (h *heap[K]) down(i int, x item[K]) {
	for {
		least := 2*i + 1
		if least >= len(h.items) {
			break
		}
		if right := least + 1; right < len(h.items) && h.before(h.items[right].key, h.items[least].key) {
			least = right
		}
		if !h.before(h.items[least].key, x.key) {
			break
		}
		h.put(i, h.items[least])
		i = least
	}
	h.put(i, x)
}
