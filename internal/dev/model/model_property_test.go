package model

import (
	"context"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// op is one call, at one reading of the clock.
type op struct {
	kind  opKind
	raw   int64
	n     int           // the cost, the delta or the actual cost
	ahead time.Duration // a Reserve's maxDelay
	id    int           // the reservation made or settled
}

type opKind int

const (
	opTake opKind = iota
	opAllow
	opPeek
	opReserve
	opSettle
	opCancel
	opAdjust
	opReset
	opSweep
)

var opNames = [...]string{"Take", "Allow", "Peek", "Reserve", "Settle", "Cancel", "Adjust", "Reset", "Sweep"}

func (o op) String() string {
	return fmt.Sprintf("at %d: %s(%d) ahead=%d id=%d", o.raw, opNames[o.kind], o.n, o.ahead, o.id)
}

// answer is an op's result.
type answer struct {
	d     ratelimit.Decision
	err   error
	swept int
	len   int
}

// rig is a limiter of one key, with a clock set by hand.
type rig struct {
	limiter *ratelimit.Keyed[string]
	clock   *testClock
	made    map[int]*ratelimit.Reservation
	key     string
}

func newRig(t testing.TB, l ratelimit.Limit) *rig {
	clock := &testClock{}
	limiter, err := ratelimit.New(l, &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	return &rig{limiter: limiter, clock: clock, made: map[int]*ratelimit.Reservation{}, key: "k"}
}

func (r *rig) do(o op) (a answer) {
	r.clock.now.Store(o.raw)
	ctx := context.Background()
	switch o.kind {
	case opTake:
		a.d, a.err = r.limiter.Take(ctx, r.key, o.n)
	case opAllow:
		a.d.Allowed = r.limiter.Allow(r.key, o.n)
	case opPeek:
		a.d, a.err = r.limiter.Peek(context.Background(), r.key, o.n)
	case opReserve:
		res, err := r.limiter.Reserve(ctx, r.key, o.n, o.ahead)
		a.d, a.err, r.made[o.id] = res.Decision, err, res
	default:
		r.change(o, &a)
	}
	a.len = r.limiter.Stats().Keys
	return a
}

// change makes the ops other than decisions.
func (r *rig) change(o op, a *answer) {
	switch o.kind {
	case opSettle:
		a.err = r.made[o.id].Settle(o.n)
	case opCancel:
		a.err = r.made[o.id].Cancel()
	case opAdjust:
		a.err = r.limiter.Adjust(context.Background(), r.key, o.n)
	case opReset:
		r.limiter.Reset(context.Background(), r.key)
	case opSweep:
		a.swept = r.limiter.Sweep()
	}
}

// judge makes the limiter's ops on the model.
type judge struct {
	*model
	made map[int]*receipt

	// sweptAt is the reading when a key of unknown spending was swept away. The model
	// does not know when that key became fresh, so it cannot place earlier readings.
	sweptAt int64
}

func newJudge(l ratelimit.Limit) *judge {
	return &judge{model: newModel(l), made: map[int]*receipt{}, sweptAt: math.MinInt64}
}

func (j *judge) do(o op) (a answer) {
	j.blurry = j.blurry || o.raw < j.sweptAt
	switch o.kind {
	case opTake, opAllow:
		a.d, _, a.err = j.take(o.raw, o.n, -1, true)
	case opPeek:
		a.d, _, a.err = j.take(o.raw, o.n, -1, false)
	case opReserve:
		a.d, j.made[o.id], a.err = j.take(o.raw, o.n, min(max(0, int64(o.ahead)), 1<<61), true)
	default:
		j.change(o, &a)
	}
	if o.kind == opAllow {
		a.d, a.err = ratelimit.Decision{Allowed: a.d.Allowed}, nil
	}
	a.len = j.len()
	return a
}

func (j *judge) change(o op, a *answer) {
	switch o.kind {
	case opSettle:
		j.settle(o.raw, j.made[o.id], o.n)
	case opCancel:
		j.settle(o.raw, j.made[o.id], 0)
	case opAdjust:
		j.adjust(o.raw, o.n)
	case opReset:
		j.reset()
		j.blurry = false
	case opSweep:
		if !j.blurry { // otherwise the limiter's answer counts
			a.swept = j.sweep(o.raw)
		}
	}
}

// script converts bytes from a seed or a fuzzer to ops. It reads the answers, to choose instants and costs that matter.
type script struct {
	data   []byte
	limit  ratelimit.Limit
	raw    int64
	last   ratelimit.Decision
	usable []int // reservations to settle
	made   int
	only   []opKind // the permitted calls; nil permits all
	onward bool     // whether the clock never steps back
	edge   bool     // the limit is so slow that the clock must stay near its origin
}

// byte returns the next byte, or 0 if there is none left.
func (s *script) byte() int {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return int(b)
}

func (s *script) word() int { return s.byte()<<8 | s.byte() }

// scriptRates are rates with large divisors, and very fast and very slow ones.
var scriptRates = []ratelimit.Rate{
	ratelimit.PerSecond(3), ratelimit.Per(7, 11*time.Second), ratelimit.PerDay(999_983), ratelimit.PerSecond(Whole(3_000_000_019)),
	ratelimit.PerDay(1), ratelimit.PerMinute(100), ratelimit.PerHour(123_457), ratelimit.PerSecond(1_000_000_000),
}

// counting lists the algorithms that regain spending with time.
var counting = []ratelimit.Algorithm{
	ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket, ratelimit.AlgorithmFixedWindow,
	ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmSlidingCounter, ratelimit.AlgorithmCalendar,
}

func (s *script) pickLimit() {
	algorithm := counting[s.byte()%len(counting)]
	rate := ratelimit.Per(1+s.byte()%20, time.Duration(1+s.byte()%50))
	if b := s.byte(); b%2 == 0 {
		rate = scriptRates[b/2%len(scriptRates)]
	}
	s.limit = ratelimit.Limit{Algorithm: algorithm, Rate: rate}
	if algorithm == ratelimit.AlgorithmCalendar {
		s.limit = ratelimit.Calendar(1+s.byte()%20, Periods[s.byte()%len(Periods)].Period)
	}
	if algorithm <= ratelimit.AlgorithmLeakyBucket {
		s.limit.Burst = 1 + s.byte()%20
		if s.byte()%4 == 0 {
			s.limit.Burst = min(rate.Units, 100_000)
		}
	}
}

// step leaves the clock as it is, or moves it by a little, to an instant in the last answer, far, or back.
func (s *script) step() {
	least, most := -140*Year, 140*Year // readings further from 0 count as 146 years
	if s.edge {
		least, most = -20*Year, 40*Year
	}
	defer func() { s.raw = min(max(s.raw, least), most) }()
	b := s.byte()
	if s.onward {
		b %= 228
	}
	per := float64(Span(s.limit))
	switch {
	case b < 60:
	case b < 90:
		s.raw += int64(b - 60)
	case b < 150:
		announced := [...]time.Duration{s.last.RetryAfter, s.last.ResetAfter, s.last.Delay}[b%3]
		s.raw += int64(announced) + int64(b/3%3) - 1
		if s.onward {
			s.raw++
		}
	case b < 220:
		s.raw += int64(per * float64(s.byte()) / 100)
	case b < 228:
		s.raw += int64(per) * int64(s.byte()%32)
	default:
		s.raw -= int64(per * float64(s.byte()) / 200)
	}
}

func (s *script) cost() int {
	capacity := s.limit.Capacity()
	switch b := s.byte(); {
	case b < 90:
		return 1 + b%3
	case b < 110:
		return max(0, s.last.Remaining+b%3-1)
	case b < 240:
		return max(1, capacity/100*(s.byte()%101)+s.byte()%min(capacity, 20))
	default:
		return [...]int{0, -1, capacity, capacity + 1, math.MaxInt, math.MinInt}[b%6]
	}
}

func (s *script) next() op {
	s.step()
	o := op{raw: s.raw, kind: s.kind()}
	switch o.kind {
	case opTake, opAllow, opPeek:
		o.n = s.cost()
	case opReserve:
		o.n, o.ahead, o.id = s.cost(), s.aheadBy(), s.made
		if s.edge {
			o.ahead = 0 // bookings may also take at most 100 years to regain
		}
		s.usable = append(s.usable, s.made)
		s.made++
	case opSettle, opCancel:
		o.id = s.usable[s.byte()%len(s.usable)]
		o.n = max(-1, s.cost())%(2*min(s.limit.Capacity(), math.MaxInt/4)+1) - 1
	case opAdjust:
		s.adjust(&o)
	}
	return o
}

// everything lists the kinds of ops, and frequent ones several times.
var everything = []opKind{
	opTake, opTake, opTake, opTake, opTake, opAllow, opPeek, opPeek,
	opReserve, opReserve, opReserve, opReserve, opReserve, opReserve,
	opSettle, opSettle, opCancel, opCancel, opCancel, opAdjust, opSweep, opReset,
}

func (s *script) kind() opKind {
	kinds := s.only
	if kinds == nil {
		kinds = everything
	}
	k := kinds[s.byte()%len(kinds)]
	if len(s.usable) == 0 && (k == opSettle || k == opCancel) {
		return opReserve
	}
	return k
}

func (s *script) aheadBy() time.Duration {
	switch b := s.byte(); {
	case b < 60:
		return 0
	case b < 200:
		return time.Duration(float64(Span(s.limit)) * float64(b) / 50)
	case b < 220:
		return s.last.RetryAfter - time.Duration(b%2)
	case b < 250:
		return math.MaxInt64
	}
	return -1
}

// adjust charges or grants. After a grant, older reservations are not settled,
// because it is not specified which of their units the grant has given back.
func (s *script) adjust(o *op) {
	o.n = 1 + s.word()%(3*min(s.limit.Capacity(), math.MaxInt/4)+1)
	if s.byte()%2 == 0 {
		o.n, s.usable = -o.n, nil
	}
}

// runScript compares the limiter with the model over a script.
func runScript(t testing.TB, data []byte, maxOps int) {
	s := &script{data: data}
	s.pickLimit()
	s.run(t, maxOps)
}

func (s *script) run(t testing.TB, maxOps int) {
	rig, judge := newRig(t, s.limit), newJudge(s.limit)
	var ops []op
	for len(s.data) > 0 && len(ops) < maxOps {
		o := s.next()
		ops = append(ops, o)
		got, want := rig.do(o), judge.do(o)
		if !judge.accepts(o, got, want) {
			fail(t, s.limit, ops)
		}
		if o.kind <= opReserve && o.kind != opAllow {
			s.last = got.d
		}
	}
}

// accepts reports whether the limiter's answer equals the model's. If the model has no answer, it returns true.
func (j *judge) accepts(o op, got, want answer) bool {
	if j.blurry {
		if o.kind == opReserve {
			j.reserved(o, got)
		}
		if got.swept > 0 {
			j.forget()
			j.blurry, j.sweptAt = false, o.raw
		}
		return true
	}
	if want.err != nil {
		got.d, want.d = outcome(got.d), outcome(want.d)
	}
	if o.kind <= opReserve && o.n == 0 {
		got.d.Delay, want.d.Delay = 0, 0 // the delay of a cost of 0 does not matter
	}
	if got.d.Debt > 0 && got.d.Remaining > 0 {
		return false // one key cannot have both
	}
	return agree(got.d, want.d) && sameError(got.err, want.err) && got.swept == want.swept && got.len == want.len
}

// reserved records the limiter's reservation while the model does not know the spending. If the key is
// dropped as fresh, the model knows its state again, and needs the reservation for a later settlement.
func (j *judge) reserved(o op, got answer) {
	if !got.d.Allowed {
		j.made[o.id] = nil
	} else if j.made[o.id] == nil {
		j.made[o.id] = &receipt{booking: &booking{at: o.raw, pos: new(big.Int), cost: int64(o.n)}, life: j.life}
	}
}

// outcome reduces a decision with an error to its promised fields.
func outcome(d ratelimit.Decision) ratelimit.Decision {
	return ratelimit.Decision{Allowed: d.Allowed, RetryAfter: d.RetryAfter, Delay: d.Delay}
}

// fail removes ops as long as the limiter still contradicts the model, and reports the rest.
func fail(t testing.TB, l ratelimit.Limit, ops []op) {
	for i := len(ops) - 1; i >= 0; i-- {
		if less := slices.Delete(slices.Clone(ops), i, i+1); contradiction(t, l, less) != "" {
			ops = less
			i = min(i, len(ops))
		}
	}
	require.Fail(t, "the model answers otherwise", "limit: %v\n%s%s", l, history(ops), contradiction(t, l, ops))
}

// contradiction plays the ops, and describes the first answer that differs from the model's. It returns "" if none does.
func contradiction(t testing.TB, l ratelimit.Limit, ops []op) string {
	rig, judge := newRig(t, l), newJudge(l)
	for _, o := range ops {
		if got, want := rig.do(o), judge.do(o); !judge.accepts(o, got, want) {
			return fmt.Sprintf("got:  %+v\nwant: %+v", got, want)
		}
	}
	return ""
}

func history(ops []op) (text string) {
	for _, o := range ops {
		text += o.String() + "\n"
	}
	return text
}

// seeded returns a seed's bytes.
func seeded(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(testsize.Seed(seed), 0))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

func TestEveryAnswerIsTheModels(t *testing.T) {
	for seed := range Rounds(10_000) {
		if !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { runScript(t, seeded(seed, 300), 80) }) {
			return
		}
	}
}

// Each key has its own model. The clock only moves forward, because a forgotten key also forgets its time.
func TestKeysShareNoBudget(t *testing.T) {
	for seed := range Rounds(1_000) {
		s := &script{data: seeded(7<<32|seed, 600), onward: true, only: []opKind{opTake, opAllow, opPeek, opReserve, opSettle, opCancel, opAdjust, opReset}}
		s.pickLimit()
		rig := newRig(t, s.limit)
		// No key expires, because chance decides which keys are dropped.
		rig.limiter = newWith(t, s.limit, ratelimit.Options[string]{Clock: rig.clock, IdleTTL: math.MaxInt64})
		judges := map[string]*judge{}
		for i := range 150 {
			rig.key = strconv.Itoa(i * i % 7)
			if judges[rig.key] == nil {
				judges[rig.key] = newJudge(s.limit)
			}
			shareNothing(t, s, rig, judges[rig.key], seed)
		}
	}
}

// shareNothing makes a call on one of several keys. A reservation settles only on its own key.
func shareNothing(t *testing.T, s *script, r *rig, j *judge, seed uint64) {
	o := s.next()
	if _, own := j.made[o.id]; o.kind >= opSettle && o.kind <= opCancel && !own {
		return
	}
	got, want := r.do(o), j.do(o)
	if got.len = want.len; !j.accepts(o, got, want) {
		require.Fail(t, "the model answers otherwise", "seed %d, %v, key %s: %v\ngot:  %+v\nwant: %+v", seed, s.limit, r.key, o, got, want)
	}
	if o.kind <= opReserve && o.kind != opAllow {
		s.last = got.d
	}
}
