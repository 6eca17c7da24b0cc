package testsize

import "runtime"

// Heap counts the bytes in use after a garbage collection.
func Heap() int64 {
	runtime.GC()
	runtime.GC() // pools and finalizers need two collections
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
