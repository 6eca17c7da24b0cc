package lookup_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/internal/lookup"
)

// Goroutines look up, replace and drop a few keys. No result is older than the last Drop
// before the call. Nothing hangs, although some calls panic or end their goroutine.
func TestNoResultIsOlderThanTheLastDrop(t *testing.T) {
	c := lookup.New[int, int64](3)
	var value, dropped [8]atomic.Int64 // dropped is the value at the last Drop that has returned
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(worker)))
			for range 500 {
				key := rng.IntN(len(value))
				if rng.IntN(4) == 0 {
					v := value[key].Add(1)
					c.Drop(key)
					for old := dropped[key].Load(); old < v && !dropped[key].CompareAndSwap(old, v); {
						old = dropped[key].Load()
					}
				}
				least, fails := dropped[key].Load(), rng.IntN(8)
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					v, err := c.Get(key, 0, nil, func(key int) (int64, error) {
						switch v := value[key].Load(); fails {
						case 0:
							panic("a bug")
						case 1:
							runtime.Goexit()
							return 0, nil
						case 2:
							return 0, fmt.Errorf("no result")
						default:
							return v, nil
						}
					})
					if err == nil {
						assert.GreaterOrEqual(t, v, least)
						if rng.IntN(8) == 0 {
							c.Take(key, v)
						}
					}
				}()
				<-done
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, c.Len(), 3)
}

// Put keeps an earlier result, unless there is one already, or it is no longer valid.
func TestAResultThatIsPutBackGivesWayToANewerOne(t *testing.T) {
	c := lookup.New[string, int](10)
	get := func(version uint64, v int) int {
		got, _ := c.Get("k", version, nil, func(string) (int, error) { return v, nil })
		return got
	}
	c.Put("k", 1, 7, func() bool { return false })
	assert.Equal(t, 8, get(1, 8))
	c.Put("k", 1, 9, func() bool { return true })
	assert.Equal(t, 8, get(1, 10), "there is a result already")
	c.Take("k", 9)
	assert.Equal(t, 8, get(0, 10), "another result is not taken; a later version serves an earlier one")
	assert.Equal(t, 11, get(2, 11))
	c.Take("k", 11)
	assert.Equal(t, 12, get(2, 12))
	c.Drop("k")
	got, _ := c.Get("k", 2, func() (int, bool) { return 13, true }, func(string) (int, error) { return 14, nil })
	assert.Equal(t, 13, got)
	assert.Equal(t, 1, c.Len())
}

func TestAKeyWithoutAValueOfItsOwn(t *testing.T) {
	c := lookup.New[string, int](0)
	for name, want := range map[string]int{"own": 7, "none": 0} {
		v, ok := lookup.Own(c, name, func(key string) int { return map[string]int{"own": 7}[key] })
		assert.Equal(t, want, v)
		assert.Equal(t, want != 0, ok)
	}
	_, ok := lookup.Own(c, "own", nil)
	assert.False(t, ok)
}
