package inflight_test

import "sync"

// inParallel calls f from n goroutines, and waits for all of them.
func inParallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
