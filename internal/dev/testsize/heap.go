package testsize

import "runtime"

// Heap returns the number of bytes in use, without garbage.
func Heap() int64 {
	runtime.GC()
	runtime.GC() // memory of pools and finalizers needs two
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
