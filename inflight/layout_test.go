package inflight

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

// A decision under a fixed limit touches one of the processor's cache
// lines. Keys are allocated in blocks, whose size is a multiple of a line.
func TestADecisionTouchesOneCacheLine(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("lines are counted for 64 bits")
	}
	const line = 64
	var e entry[string]
	assert.Zero(t, unsafe.Offsetof(e.semaphore))
	assert.LessOrEqual(t, unsafe.Offsetof(e.works)+unsafe.Offsetof(e.works.first)+unsafe.Sizeof(e.works.first), uintptr(line))
	assert.LessOrEqual(t, unsafe.Sizeof(e), uintptr(6*line))
	assert.Greater(t, unsafe.Sizeof(e), uintptr(352), "the next smaller block is no multiple of a line")
}
