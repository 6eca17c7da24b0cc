package pace

import "time"

// Overslept counts the requests that wait although they could book
// or be sent. A request does not count while it calls the limiter.
func (pc *Pacer[R]) Overslept(now time.Time) (n int) {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	for _, l := range pc.lines {
		n += l.overslept(now)
	}
	return n
}

func (l *line) overslept(now time.Time) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.queue {
		if todo, _ := l.stepLocked(p, now); p != l.booking && (todo == stepBook || todo == stepSend) {
			n++
		}
	}
	return n
}

// Lock locks the keys' lines until unlock is called.
func (pc *Pacer[R]) Lock(keys ...string) (unlock func()) {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	var held []*line
	for _, key := range keys {
		l := pc.lines[key]
		l.mu.Lock()
		held = append(held, l)
	}
	return func() {
		for _, l := range held {
			l.mu.Unlock()
		}
	}
}
