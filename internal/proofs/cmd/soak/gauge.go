package main

import (
	"fmt"
	"runtime"
	"time"
)

// gauge records figures that must not grow once the tables are full.
type gauge struct {
	goroutines int
	heap       uint64
	now        uint64 // the heap at the last check
}

// slack returns how much the heap may grow: a third, and some megabytes for the runtime and the soak itself.
func (g *gauge) slack() uint64 { return g.heap/3 + 32<<20 }

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// check checks the heap and the goroutines.
func (g *gauge) check() error {
	if n := settled(g.goroutines); n > g.goroutines {
		return fmt.Errorf("%d goroutines run, and there were %d at the start", n, g.goroutines)
	}
	g.now = heapInUse()
	if g.now > g.heap+g.slack() {
		return fmt.Errorf("the heap has grown to %d MB, and was %d MB at the start", g.now>>20, g.heap>>20)
	}
	return nil
}

// settled counts the goroutines. It waits up to a second until at most want are left,
// because a goroutine that has ended counts until the scheduler runs it once more.
func settled(want int) int {
	for range 100 {
		if runtime.NumGoroutine() <= want {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return runtime.NumGoroutine()
}
