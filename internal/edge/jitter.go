package edge

import (
	"hash/maphash"
	"math/bits"
	"time"
)

// jitterSeed spreads the instants at which clients return after simultaneous denials.
type jitterSeed struct{ seed maphash.Seed }

// newJitterSeed returns a random seed.
func newJitterSeed() jitterSeed { return jitterSeed{maphash.MakeSeed()} }

// jitterPeriod is how long a client's share stays the same. After it the share changes, so that no client is always the last.
const jitterPeriod = 10 * time.Minute

// share returns the client's share of a span, at least 0 and less than the span. The caller adds it to a wait from now
// on. The share depends on the period in which the wait ends, because the end stays the same while the client waits.
func (s jitterSeed) share(client string, now time.Time, wait, span time.Duration) time.Duration {
	hash := maphash.Comparable(s.seed, struct {
		client string
		period int64
	}{client, now.Add(wait).UnixNano() / int64(jitterPeriod)})
	hi, _ := bits.Mul64(hash, uint64(max(0, span))) // maps the hash evenly to the span
	return time.Duration(hi)
}
