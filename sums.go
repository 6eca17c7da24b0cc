package ratelimit

// A sliding log's runs are sums of costs.

// sum returns what the run of that level costs that begins with the i-th entry.
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

// total returns what the oldest k entries cost.
func total(r *ring[int64], k int) (n int64) {
	r.summed()
	for i := 0; i < k; {
		level := r.longest(i, k)
		n += sum(r, i, level)
		i += runSize(level)
	}
	return n
}

// covering returns how many of the oldest entries cost need together, or more.
// All of them do.
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
