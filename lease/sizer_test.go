package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A batch grows while batches are used up too fast, and shrinks if they last too long. After
// an idle time, or when the clock steps back, the next batch is only as large as needed.
func TestABatchIsAsLargeAsTheKeysRateNeeds(t *testing.T) {
	p := pace{most: 100, batchFor: time.Second, holdFor: time.Minute}
	begun := sizer{size: 16, at: 10 * time.Second, spent: 1000}
	for name, test := range map[string]struct {
		now   time.Duration
		spent int64
		need  int
		want  int
	}{
		"spent in half of the time":          {10*time.Second + 500*time.Millisecond, 1016, 1, 32},
		"spent just too fast":                {11*time.Second - time.Nanosecond, 1016, 1, 32},
		"spent in the time":                  {11 * time.Second, 1016, 1, 16},
		"spent in twice the time":            {12 * time.Second, 1016, 1, 16},
		"spent a little more slowly":         {12*time.Second + time.Nanosecond, 1016, 1, 8},
		"half of it spent in that time":      {12 * time.Second, 1008, 1, 8},
		"nothing spent":                      {11 * time.Second, 1000, 1, 8},
		"slowly, and more is needed":         {13 * time.Second, 1016, 12, 12},
		"idle, a little shorter than it may": {70*time.Second - time.Nanosecond, 1016, 1, 8},
		"idle":                               {70 * time.Second, 1016, 3, 3},
		"the clock went back":                {10*time.Second - time.Nanosecond, 1016, 3, 3},
		"nothing needed":                     {70 * time.Second, 1016, 0, 1},
		"more needed than a batch may have":  {11 * time.Second, 1016, 1000, 100},
	} {
		s := begun
		assert.Equal(t, test.want, s.next(p, test.now, test.spent, test.need), name)
		assert.Equal(t, sizer{test.want, test.now, test.spent}, s, name)
	}
	s := sizer{size: 64, at: 0, spent: 0}
	assert.Equal(t, 100, s.next(p, time.Millisecond, 64, 1), "at most the largest")
	s.forget()
	assert.Equal(t, 1, s.next(p, 2*time.Millisecond, 128, 1), "it starts small again")
}
