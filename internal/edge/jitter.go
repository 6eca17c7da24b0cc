// Package spread keeps clients that were denied at the same time from coming back at the same
// time.
package spread

import (
	"hash/maphash"
	"math/bits"
	"time"
)

// Seed tells one process's clients apart. Make one with New.
type Seed struct{ seed maphash.Seed }

// New returns a seed of its own.
func New() Seed { return Seed{maphash.MakeSeed()} }

// period is how long a client's share stays the same. After that it changes, so that no
// client is always the last.
const period = 10 * time.Minute

// Share returns the client's share of a span, which is to be added to a wait that begins
// now: at least 0, and less than the span. It depends on the period that the end of the
// wait is in: that instant does not change while the client waits.
func (s Seed) Share(client string, now time.Time, wait, span time.Duration) time.Duration {
	hash := maphash.Comparable(s.seed, struct {
		client string
		period int64
	}{client, now.Add(wait).UnixNano() / int64(period)})
	hi, _ := bits.Mul64(hash, uint64(max(0, span))) // maps the hash evenly onto the span
	return time.Duration(hi)
}
