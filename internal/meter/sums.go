package meter

// This file is what the runs of a sliding log come to: sums of costs. They are not kept up
// to date with each entry, which would make every Allow slower, but worked out when a
// question needs them, and then remembered until an entry of the run changes.

// sum returns the cost of the run of that level that begins with the i-th entry.
func sum(r *ring[int64], i, level int) int64 {
	if level == 0 {
		return r.slot(i).cost
	}
	run := r.run(i, level)
	if !run.known {
		run.sum, run.known = 0, true
		for end := i + runSize(level); i < end; i += runSize(level - 1) {
			run.sum += sum(r, i, level-1)
		}
	}
	return run.sum
}

// total returns the cost of the oldest k entries. It adds up the longest runs that lie
// among them, so it takes O(log k) steps if their sums are known.
func total(r *ring[int64], k int) (n int64) {
	r.summed()
	for i := 0; i < k; {
		level := r.longest(i, k)
		n += sum(r, i, level)
		i += runSize(level)
	}
	return n
}

// covering returns how many of the oldest entries it takes to cost need together, or more.
// All of them together cost that much. A run that does not reach it is counted as a whole,
// and only in one that would are the shorter runs looked at. Nothing is worked out
// about a run unless all shorter ones at its beginning are too short, so what is
// needed at the front costs no more than the entries there.
func covering(r *ring[int64], need int64) (k int) {
	for r.summed(); need > 0; {
		level := 0
		for most := r.longest(k, r.len()); level < most && sum(r, k, level+1) < need; level++ {
		}
		need -= sum(r, k, level)
		k += runSize(level)
	}
	return k
}
