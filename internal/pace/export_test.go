package pace

import "time"

// Overslept returns how many requests wait although they could book or be sent. Those that
// are asking the limiter do not wait.
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
