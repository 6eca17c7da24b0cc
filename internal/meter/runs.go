package meter

// runs remembers what runs of neighbouring slots of a ring's buffer come to, so that a
// question about many entries looks at few: 64 slots make a run, 64 runs make a longer
// one, and so on. A run begins at a multiple of its length. It is only asked for when
// all its slots hold entries, so to add and to forget entries at the ends leaves the other
// runs as they are. A question about n entries then takes at most 128 steps for each power
// of 64 in n. What has changed since the last question costs 64 steps for each change and
// power, once.
type runs[S any] struct {
	levels [][]run[S] // levels[0] has the runs of 64 slots, levels[1] those of 4096
	gaps   int        // entries of cost 0 since the buffer was made, or more
}

// run is what one run comes to, if that is known.
type run[S any] struct {
	sum   S
	known bool
}

const (
	runBits = 6
	runLen  = 1 << runBits
)

// newRuns returns the runs of a buffer with that many slots, of which none is known.
func newRuns[S any](slots int) *runs[S] {
	r := new(runs[S])
	for n := slots / runLen; n > 0; n /= runLen {
		r.levels = append(r.levels, make([]run[S], n))
	}
	return r
}

// touch takes note that a slot has changed.
func (r *runs[S]) touch(slot int) {
	for _, level := range r.levels {
		slot >>= runBits
		level[slot].known = false
	}
}

// longest returns the level of the longest run that begins with the slot and has no more
// than n: 0 for the slot alone.
func (r *runs[S]) longest(slot, n int) (level int) {
	for level < len(r.levels) && slot&(runSize(level+1)-1) == 0 && runSize(level+1) <= n {
		level++
	}
	return level
}

// at returns the run of a level from 1 on that begins with the slot.
func (r *runs[S]) at(slot, level int) *run[S] {
	return &r.levels[level-1][slot>>(level*runBits)]
}

// runSize is how many slots a run of that level has.
func runSize(level int) int { return 1 << (level * runBits) }
