package ratelimit

import "sync"

// dirtyList lists the keys that may be fresh earlier than the expiry heap expects: a part of
// their spending was given back, or their limit has changed. The heap looks at them before
// it reports that there is no fresh key. A key is on the list at most once: see usage.
//
// Plans refer to it, because a refund knows only the account and its plan. Its lock is the last in the order of locks.
//
// It consists of pages, because copying a large slice when it grows takes long.
type dirtyList struct {
	mu    sync.Mutex
	pages []*[dirtyPage]*account
	n     int
}

// dirtyPage is the number of keys in a page.
const dirtyPage = 512

func (d *dirtyList) add(a *account) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n == len(d.pages)*dirtyPage {
		d.pages = append(d.pages, new([dirtyPage]*account))
	}
	d.pages[d.n/dirtyPage][d.n%dirtyPage] = a
	d.n++
}

// dirtyAtOnce is how many keys of the list an insertion processes. It is more
// than each key adds to the list, so the list does not grow while there is room.
const dirtyAtOnce = 64

// take removes as many of the listed keys as fit into buf, and returns them in it. It keeps one empty page.
func (d *dirtyList) take(buf []*account) []*account {
	d.mu.Lock()
	defer d.mu.Unlock()
	buf = buf[:min(len(buf), d.n)]
	for i := range buf {
		d.n--
		p := &d.pages[d.n/dirtyPage][d.n%dirtyPage]
		buf[i], *p = *p, nil
	}
	if used := (d.n+dirtyPage-1)/dirtyPage + 1; used < len(d.pages) {
		clear(d.pages[used:])
		d.pages = d.pages[:used]
	}
	return buf
}
