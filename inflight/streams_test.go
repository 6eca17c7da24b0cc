package inflight_test

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// model is a backend of language models. It writes up to atFullSpeed
// answers at full speed. If there are more, they share its capacity.
type model struct {
	atFullSpeed int
	prefill     time.Duration // the time before the first token, at full speed
	load        float64       // the load, as a part of the capacity
	mix         func(quarter int) []answers
}

// answers describes one kind of answer: its share of all answers, and its mean number of tokens. Lengths vary by half.
type answers struct{ share, tokens float64 }

const tokensPerSecond = 50

// streamed has the figures for a quarter of an hour: the used part
// of the capacity, and the mean speed as a part of the full speed.
type streamed struct{ tokens, speed float64 }

// play returns the figures for four quarters of an hour.
func (m model) play(t testing.TB, seed uint64) (all []streamed) {
	rng, clock := rand.New(rand.NewPCG(testsize.Seed(seed), 43)), new(ratelimittest.Clock)
	clock.Advance(1000 * time.Hour)
	l, err := inflight.Protect(&options{Clock: clock})
	require.NoError(t, err)
	var open writing
	var done, now float64 // how many seconds of full speed each open answer has received, and the time
	const quarter = 15 * 60.0
	next := 0.0
	for q := range 4 {
		mix, mean := m.mix(q), 0.0
		for _, a := range mix {
			mean += a.share * (a.tokens/tokensPerSecond + m.prefill.Seconds())
		}
		gap := mean / float64(m.atFullSpeed) / m.load
		var work, time float64
		for now < float64(q+1)*quarter {
			speed := min(1, float64(m.atFullSpeed)/float64(max(1, len(open))))
			end := math.Inf(1)
			if len(open) > 0 {
				end = now + (open[0].ends-done)/speed
			}
			at := min(next, end)
			clock.Advance(seconds(at) - seconds(now))
			done += (at - now) * speed
			if now = at; end <= next {
				x := heap.Pop(&open).(*answer)
				work, time = work+x.needs, time+now-x.began
				x.permit.DoneAmount(inflight.Success, x.tokens)
				continue
			}
			next += rng.ExpFloat64() * gap
			p, err := l.TryAcquire("model", 1)
			if err != nil {
				continue
			}
			x := &answer{permit: p, began: now, tokens: draw(rng, mix)}
			x.needs = x.tokens/tokensPerSecond + m.prefill.Seconds()
			x.ends = done + x.needs
			heap.Push(&open, x)
		}
		all = append(all, streamed{work / quarter / float64(m.atFullSpeed) / min(1, m.load), work / time})
	}
	return all
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func draw(rng *rand.Rand, mix []answers) float64 {
	at := rng.Float64()
	for _, a := range mix {
		if at -= a.share; at < 0 {
			return a.tokens * (0.5 + rng.Float64())
		}
	}
	return mix[0].tokens
}

// answer is an answer in progress.
type answer struct {
	permit                     inflight.Permit
	began, ends, needs, tokens float64
}

// writing is a heap of answers. The next one to end is on top.
type writing []*answer

func (w writing) Len() int           { return len(w) }
func (w writing) Less(i, j int) bool { return w[i].ends < w[j].ends }
func (w writing) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }
func (w *writing) Push(x any)        { *w = append(*w, x.(*answer)) }
func (w *writing) Pop() any {
	old := *w
	x := old[len(old)-1]
	*w = old[:len(old)-1]
	return x
}

// streamMixes has the kinds of answers in each quarter.
var streamMixes = map[string]func(int) []answers{
	"equal":  func(int) []answers { return []answers{{1, 400}} },
	"mixed":  func(int) []answers { return []answers{{0.8, 100}, {0.2, 2000}} },
	"rarely": func(int) []answers { return []answers{{0.97, 50}, {0.03, 3000}} },
	"drifts": func(q int) []answers {
		long := []float64{0.05, 0.5, 0.1, 0.9}[q]
		return []answers{{1 - long, 100}, {long, 1500}}
	},
}

// With amounts, long answers keep most of their speed while the backend is in full use, whatever
// the mix of lengths. A small backend has pauses if the load hardly exceeds its capacity.
func TestAnswersKeepTheirSpeedWhateverTheirLength(t *testing.T) {
	testsize.Arithmetic(t)
	t.Parallel()
	for name, mix := range streamMixes {
		for _, size := range []int{8, 32, 100} {
			for _, load := range []float64{1.1, 1.5, 2} {
				var speed, tokens float64
				n := testsize.Of(1, 10)
				for seed := range uint64(n) {
					quarters := model{size, 200 * time.Millisecond, load, mix}.play(t, seed)
					t.Logf("%s, %d at full speed, load %v, seed %d: %.2f", name, size, load, seed, quarters)
					for _, q := range quarters[1:] { // skip the first quarter, because the limit begins at 20
						speed, tokens = speed+q.speed/3/float64(n), tokens+q.tokens/3/float64(n)
					}
				}
				least := 0.95
				if size < 10 {
					least = 0.8
				}
				assert.GreaterOrEqual(t, speed, 0.75, "%s, %d at full speed, load %v", name, size, load)
				assert.GreaterOrEqual(t, tokens, least, "%s, %d at full speed, load %v", name, size, load)
			}
		}
	}
}
