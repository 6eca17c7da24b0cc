package ratelimit

// runs remembers what runs of neighbouring entries of a ring come to, so that a question
// about many entries looks at few: 64 entries make a run, 64 runs make a longer one, and
// so on. A run begins at a multiple of its length in the ring's buffer. It is only
// asked for when all its slots hold entries, so that to add and to forget entries
// at the ends leaves the others' runs as they are. A question about n entries then
// takes at most 128 steps for each power of 64 in n, and to work out again what has changed
// since the last one 64 for each change and power.
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

// summed makes sure that a long ring has runs.
func (r *ring[S]) summed() {
	if r.runs != nil || len(r.buf) <= runLen {
		return
	}
	r.runs = new(runs[S])
	for n := len(r.buf) / runLen; n > 0; n /= runLen {
		r.runs.levels = append(r.runs.levels, make([]run[S], n))
	}
}

// touch takes note that the i-th entry has changed.
func (r *ring[S]) touch(i int) {
	if r.runs != nil {
		r.runs.touch(r.index(i))
	}
}

func (r *runs[S]) touch(slot int) {
	for _, level := range r.levels {
		slot >>= runBits
		level[slot].known = false
	}
}

// longest returns how many times 64 entries are in the longest run, in powers, that
// begins with the i-th entry and ends before the end-th: 0 for the entry alone.
func (r *ring[S]) longest(i, end int) (level int) {
	if r.runs == nil {
		return 0
	}
	slot := r.index(i)
	for level < len(r.runs.levels) && slot&(span64(level+1)-1) == 0 && i+span64(level+1) <= end {
		level++
	}
	return level
}

// run returns the run of that level that begins with the i-th entry.
func (r *ring[S]) run(i, level int) *run[S] {
	return &r.runs.levels[level-1][r.index(i)>>(level*runBits)]
}

// span64 is how many entries a run of that level has.
func span64(level int) int { return 1 << (level * runBits) }
