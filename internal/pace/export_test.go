package pace

import "time"

// Overslept counts the requests that wait although they could book or be
// sent. A request that is calling the limiter does not count as waiting.
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

// Lock acquires keys' locks. unlock releases them.
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
