package inflight_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var schedules = flag.Int("schedules", testsize.Of(50, 3000), "how many random schedules are played beside a model")

// tenantModel is the model's state of a key.
type tenantModel struct {
	name             string
	limit, own       int // the present limit, and LimitFor's; own is 0 if LimitFor returns none
	weight, priority int
	inFlight         int
	used             float64 // slot-time per weight, in ns
	level            bool    // whether used was raised to the others' use when a caller began to wait
	waiters          []*waiterModel
	shed             uint64
	losing           bool    // whether a waiter has left unserved since the queue was empty
	hold             float64 // the mean time of recent successes, in ns
}

type waiterModel struct {
	id, n    int
	who      *tenantModel
	since    time.Duration
	deadline time.Duration // 0 if there is none
	cancel   context.CancelFunc
}

type permitModel struct {
	who    *tenantModel
	n      int
	start  time.Duration
	permit inflight.Permit
}

// result is the result of a call to Acquire.
type result struct {
	id     int
	permit inflight.Permit
	err    error
}

// scheduleModel is a limiter built from the definitions. If they leave a choice
// between keys whose uses differ by at most slack, the model follows the real limiter.
type scheduleModel struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	l    *inflight.Limiter[string]
	log  []string

	tenants              []*tenantModel
	base                 int
	total, bound         int // the present total, and its upper bound
	maxQueue, maxWaiting int
	shared, adaptive     bool
	timed                bool // whether the time of all work is known

	start      time.Time
	now        time.Duration
	held       []permitModel
	results    chan result
	ids        int
	bounds     map[int]float64 // the bounds of all levels but the highest, taken from the real limiter
	late       map[int]bool    // waiters refused at their turn, because their deadline was too close
	refused    bool            // whether the last call has refused such a waiter; it may have collected before
	newest     int             // the call just made, or 0
	served     map[int]float64 // for each priority with waiters, the least use when a caller was last served; no key begins with less
	collecting []*tenantModel  // one of these collects freed units; empty if no key does
	perhaps    bool            // whether it is possible that none of them collects
	collected  []*tenantModel  // collecting before the last call
}

// slack is the model's uncertainty of slot-time. It is not 0, because each unit counts for at least a microsecond.
const slack = 30 * float64(time.Microsecond)

// creeping is a clock that never stands still, like real time: each reading is a nanosecond later.
type creeping struct{ readings atomic.Int64 }

var began = time.Now()

func (c *creeping) Now() time.Duration { return time.Since(began) + time.Duration(c.readings.Add(1)) }

// randomLimit is an algorithm whose limits do not depend on its samples.
type randomLimit struct{ rng *rand.Rand }

func (randomLimit) Limit() int                     { return 3 }
func (randomLimit) Window() int                    { return 1 }
func (a randomLimit) Update(s inflight.Sample) int { return 1 + a.rng.IntN(s.Max) }

func (m *scheduleModel) failf(format string, args ...any) {
	m.t.Helper()
	for _, line := range m.log[max(0, len(m.log)-40):] {
		m.t.Log(line)
	}
	for _, k := range m.tenants {
		m.t.Logf("%s: limit %d, weight %d, priority %d, %d in flight, used %.3f ms, level %v, collects %v", k.name, k.limit, k.weight, k.priority, k.inFlight, k.used/1e6, k.level, slices.Contains(m.collecting, k))
		for _, w := range k.waiters {
			m.t.Logf("  waits: call %d for %d", w.id, w.n)
		}
	}
	m.t.Logf("total %d of %d", m.total, m.bound)
	for _, w := range m.waiting() {
		w.cancel()
	}
	require.FailNow(m.t, fmt.Sprintf("seed %d, step %d: ", m.seed, len(m.log))+fmt.Sprintf(format, args...))
}

func (m *scheduleModel) logf(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf("%9.3f ms: ", float64(m.now)/1e6)+fmt.Sprintf(format, args...))
}

func newSchedule(t *testing.T, seed uint64) *scheduleModel {
	rng := rand.New(rand.NewPCG(testsize.Seed(seed), 22))
	m := &scheduleModel{t: t, seed: seed, rng: rng, results: make(chan result, 1000), start: time.Now(), served: map[int]float64{}, total: math.MaxInt, bound: math.MaxInt}
	m.base, m.maxQueue = 1+rng.IntN(6), 1+rng.IntN(8)
	o := &options{MaxQueue: m.maxQueue, Clock: new(creeping)}
	if rng.IntN(4) > 0 {
		m.total = 1 + rng.IntN(10)
		m.bound, o.Total = m.total, m.total
	}
	if rng.IntN(2) == 0 {
		m.maxWaiting = 1 + rng.IntN(8)
		o.MaxWaiting = m.maxWaiting
	}
	switch a := func() inflight.Algorithm { return randomLimit{rng} }; {
	case rng.IntN(3) > 0:
	case o.Total > 0 && rng.IntN(2) == 0:
		m.shared, o.Shared, m.total = true, a, min(3, m.total)
	default:
		m.adaptive, o.Adaptive = true, a
	}
	byName := map[string]*tenantModel{}
	levels := 1 + rng.IntN(3)
	for i := range 1 + rng.IntN(6) {
		k := &tenantModel{name: fmt.Sprint(i), weight: 1 + rng.IntN(5), priority: rng.IntN(levels)}
		if rng.IntN(3) == 0 {
			k.own = 1 + rng.IntN(8)
		}
		k.limit = m.limitOf(k)
		m.tenants, byName[k.name] = append(m.tenants, k), k
	}
	o.LimitFor = func(key string) int { return byName[key].own }
	o.Weight = func(key string) int { return byName[key].weight }
	o.Priority = func(key string) int { return byName[key].priority }
	m.timed = m.adaptive || o.Total > 0 || o.MaxWaiting > 0
	m.l = newLimiter(t, m.base, o)
	for _, k := range m.tenants { // this puts all keys into the table
		take(t, m.l, k.name, 1).Done(inflight.Ignored)
	}
	m.logf("total %d, limit %d, MaxQueue %d, MaxWaiting %d, shared %v, adaptive %v", m.total, m.base, m.maxQueue, m.maxWaiting, m.shared, m.adaptive)
	for _, k := range m.tenants {
		m.logf("tenant %s: limit %d, weight %d, priority %d", k.name, k.limit, k.weight, k.priority)
	}
	return m
}

func (m *scheduleModel) boundOf(k *tenantModel) int { return cmp.Or(k.own, m.base) }

func (m *scheduleModel) limitOf(k *tenantModel) int {
	if m.adaptive {
		return min(3, m.boundOf(k))
	}
	return m.boundOf(k)
}

func (m *scheduleModel) inFlight() (n int) {
	for _, k := range m.tenants {
		n += k.inFlight
	}
	return n
}

func (m *scheduleModel) waiting() (all []*waiterModel) {
	for _, k := range m.tenants {
		all = append(all, k.waiters...)
	}
	slices.SortFunc(all, func(a, b *waiterModel) int { return a.id - b.id })
	return all
}

// advance lets time pass, and counts the units in flight.
func (m *scheduleModel) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	m.now += d
	for _, k := range m.tenants {
		k.used += float64(k.inFlight) * float64(d) / float64(k.weight)
	}
}

func (m *scheduleModel) roomOf(k *tenantModel, n int) bool {
	return k.inFlight+n <= k.limit || k.inFlight == 0
}

// room reports whether n more units of a key fit into Total. A level may exceed a shared limit held by lower levels.
func (m *scheduleModel) room(k *tenantModel, n int) bool {
	in, own := m.inFlight(), 0
	for _, x := range m.tenants {
		if x.priority >= k.priority {
			own += x.inFlight
		}
	}
	if in > 0 && m.aboveBound(k.priority, n) {
		return false
	}
	return n <= m.total-in || in == 0 || m.shared && own < in && n <= m.total-own && n <= m.bound-in
}

// aboveBound reports whether n more units of a priority exceed the bound of its level or of a higher one.
func (m *scheduleModel) aboveBound(priority, n int) bool {
	for of, bound := range m.bounds {
		below := 0
		for _, x := range m.tenants {
			if x.priority <= of {
				below += x.inFlight
			}
		}
		if of >= priority && below > 0 && float64(below+n) > bound {
			return true
		}
	}
	return false
}

// turn returns the key's next waiter. If a waiter was lost, this is the newest, provided that it fits.
func (m *scheduleModel) turn(k *tenantModel, granted map[int]inflight.Permit) *waiterModel {
	first, last := k.waiters[0], k.waiters[len(k.waiters)-1]
	if !k.losing || !m.roomOf(k, last.n) || !m.room(k, last.n) {
		return first
	}
	collects := slices.Contains(m.collecting, k)
	acted := func(w *waiterModel) bool {
		_, ok := granted[w.id]
		return ok || m.late[w.id]
	}
	switch certain := collects && !m.perhaps && len(m.collecting) == 1 && !m.refused || !collects && !slices.Contains(m.collected, k); {
	case certain && collects: // while a key collects, its first waiter is next
		return first
	case !certain && (m.late[first.id] || !acted(last) && (collects || acted(first))):
		return first
	}
	return last
}

// tooLate reports whether a waiter's deadline is too close for the key's work, and whether the model can be certain.
func (m *scheduleModel) tooLate(w *waiterModel) (late, certain bool) {
	if w.deadline == 0 {
		return false, true
	}
	left, had := float64(w.deadline-m.now), float64(w.deadline-w.since)
	x := left - max(w.who.hold, min(2*w.who.hold, had/2))
	return x < 0, m.timed && math.Abs(x) > slack
}

// wants reports whether the key waits for Total, not for its own limit.
func (m *scheduleModel) wants(k *tenantModel) bool {
	return len(k.waiters) > 0 && (m.roomOf(k, k.waiters[0].n) || k.limit >= m.bound)
}

// free reports whether a caller is served at once.
func (m *scheduleModel) free(k *tenantModel, n int) bool {
	if len(k.waiters) > 0 || !m.roomOf(k, n) || !m.room(k, n) {
		return false
	}
	for _, other := range m.tenants {
		if other.priority >= k.priority && m.wants(other) {
			return false
		}
	}
	return true
}

// never returns ErrExceedsLimit if n units can never fit, and otherwise nil.
func (m *scheduleModel) never(k *tenantModel, n int) error {
	if n > m.boundOf(k) || n > m.bound {
		return ratelimit.ErrExceedsLimit
	}
	return nil
}

func (m *scheduleModel) grant(k *tenantModel, n int, p inflight.Permit) {
	k.inFlight += n
	k.used += float64(n) * float64(time.Microsecond) / float64(k.weight)
	m.held = append(m.held, permitModel{k, n, m.now, p})
}

// settle removes the state of keys and priorities without waiters, and of collecting keys that no longer wait for Total.
func (m *scheduleModel) settle() {
	for priority := range m.served {
		if !slices.ContainsFunc(m.tenants, func(k *tenantModel) bool { return k.priority == priority && len(k.waiters) > 0 }) {
			delete(m.served, priority)
		}
	}
	for _, k := range m.tenants {
		if len(k.waiters) == 0 {
			k.level, k.losing = false, false
		}
		if !m.wants(k) {
			m.collectsNot(k)
		}
	}
}

// collectsNot removes a key from the keys that may be collecting.
func (m *scheduleModel) collectsNot(k *tenantModel) {
	if i := slices.Index(m.collecting, k); i >= 0 {
		m.perhaps = len(m.collecting) > 1
		m.collecting = slices.Delete(slices.Clone(m.collecting), i, i+1)
	}
}

// begin raises the use of keys that wait for Total from now on. before has the keys waiting earlier.
func (m *scheduleModel) begin(before []*tenantModel) {
	all := slices.Clone(m.tenants)
	slices.SortFunc(all, func(a, b *tenantModel) int {
		if a.level != b.level {
			return map[bool]int{true: -1, false: 1}[a.level]
		}
		return cmp.Compare(a.used, b.used)
	})
	before = slices.Clone(before)
	for _, k := range all {
		if !m.wants(k) || slices.Contains(before, k) {
			continue
		}
		least := math.Inf(1)
		for _, x := range before {
			if x.priority == k.priority && m.wants(x) {
				least = min(least, x.used)
			}
		}
		if floor := m.served[k.priority]; math.IsInf(least, 1) {
			k.used = max(k.used, floor)
		} else if least = max(least, floor); !k.level || k.used < least {
			k.used = least
		}
		k.level = true
		before = append(before, k)
	}
}

func (m *scheduleModel) wanting() (all []*tenantModel) {
	for _, k := range m.tenants {
		if m.wants(k) {
			all = append(all, k)
		}
	}
	return all
}

// dispatch serves the next waiters, and removes their permits from granted.
func (m *scheduleModel) dispatch(granted map[int]inflight.Permit) {
	for m.inFlight() < m.total || m.shared {
		m.settle()
		candidates := m.next()
		if len(candidates) == 0 {
			return
		}
		var large, small []*tenantModel
		var served *tenantModel
		for _, k := range candidates {
			w := m.turn(k, granted)
			if !m.room(k, w.n) || !m.roomOf(k, w.n) {
				large = append(large, k)
				continue
			}
			small = append(small, k)
			if _, ok := granted[w.id]; m.late[w.id] || ok && (served == nil || !m.late[m.turn(served, granted).id] && m.rather(k, served)) {
				served = k // refused waiters come first
			}
		}
		if served != nil && m.late[m.turn(served, granted).id] {
			w := m.turn(served, granted)
			m.logf("  too late for %d of %s", w.id, served.name)
			m.drop(w)
			delete(m.late, w.id)
			served.shed++
			served.losing = true
			continue
		}
		if served == nil {
			if len(large) == 0 {
				m.failf("there is room, and it is the turn of %v: nobody is served (granted: %v)", names(small), granted)
			}
			all := len(large)
			m.collecting = slices.DeleteFunc(large, func(k *tenantModel) bool { return m.turn(k, granted).n == 1 })
			m.perhaps = len(m.collecting) < all
			return
		}
		w, least := m.turn(served, granted), math.Inf(1)
		if slices.Contains(m.collecting, served) {
			m.collecting, m.perhaps = nil, false
		}
		for _, k := range m.wanting() {
			if k.priority == served.priority {
				least = min(least, k.used)
			}
		}
		m.served[served.priority] = max(m.served[served.priority], least)
		if late, certain := m.tooLate(w); late && certain {
			m.failf("call %d is served, and its deadline is %v away, at a usual time of %v", w.id, w.deadline-m.now, time.Duration(served.hold))
		}
		served.waiters = slices.DeleteFunc(served.waiters, func(x *waiterModel) bool { return x == w })
		m.grant(served, w.n, granted[w.id])
		delete(granted, w.id)
		m.logf("  served %d of %s", w.id, served.name)
		m.settle()
	}
}

// rather reports which of two served keys has collected: true for the first. If only one was
// losing and may have collected, it is this key, because its first waiter is next. Otherwise
// it is the key with the larger use: by its use alone, its caller would not be served yet.
func (m *scheduleModel) rather(k, other *tenantModel) bool {
	if a, b := slices.Contains(m.collecting, k) && k.losing, slices.Contains(m.collecting, other) && other.losing; a != b {
		return a
	}
	return k.used >= other.used
}

// next returns the keys that may be served next. They belong to the highest level with a waiting caller.
func (m *scheduleModel) next() (candidates []*tenantModel) {
	wanting := m.wanting()
	if len(wanting) == 0 {
		return nil
	}
	top := slices.MaxFunc(wanting, func(a, b *tenantModel) int { return a.priority - b.priority }).priority
	wanting = slices.DeleteFunc(wanting, func(k *tenantModel) bool { return k.priority != top })
	if len(m.collecting) > 0 && m.collecting[0].priority == top {
		if candidates = slices.Clone(m.collecting); !m.perhaps {
			return candidates
		}
	}
	least := slices.MinFunc(wanting, func(a, b *tenantModel) int { return cmp.Compare(a.used, b.used) }).used
	for _, k := range wanting {
		if k.used <= least+slack && !slices.Contains(candidates, k) {
			candidates = append(candidates, k)
		}
	}
	return candidates
}

func names(all []*tenantModel) (s []string) {
	for _, k := range all {
		s = append(s, fmt.Sprintf("%s (used %.3f ms, wants %d)", k.name, k.used/1e6, k.waiters[0].n))
	}
	return s
}

// drop removes a waiter, and its claim to the units collected for it.
func (m *scheduleModel) drop(w *waiterModel) {
	if w.who.waiters[0] == w {
		m.collectsNot(w.who)
	}
	w.who.waiters = slices.DeleteFunc(w.who.waiters, func(x *waiterModel) bool { return x == w })
}

// waiter returns the waiter with this number, or nil.
func (m *scheduleModel) waiter(id int) *waiterModel {
	for _, w := range m.waiting() {
		if w.id == id {
			return w
		}
	}
	return nil
}

// check compares the calls' results with the model. errs are the expected errors.
func (m *scheduleModel) check(before []*tenantModel, errs map[int]error) {
	m.t.Helper()
	synctest.Wait()
	granted := map[int]inflight.Permit{}
	m.late, m.collected, m.refused = map[int]bool{}, slices.Clone(m.collecting), false
	for len(m.results) > 0 {
		r := <-m.results
		want, failed := errs[r.id]
		switch w := m.waiter(r.id); {
		case w != nil && !failed && errors.Is(r.err, ratelimit.ErrLimited):
			if is, certain := m.tooLate(w); !is && certain {
				m.failf("call %d: got %v, and its deadline is %v away, at a usual time of %v", r.id, r.err, w.deadline-m.now, time.Duration(w.who.hold))
			}
			m.refused = true
			if m.late[w.id] = true; w.id == m.newest { // a new call has not waited
				w.who.shed++
				m.drop(w)
				delete(m.late, w.id)
			}
		case r.err == nil && !failed:
			granted[r.id] = r.permit
		case r.err == nil || !failed:
			m.failf("call %d: got %v, want %v", r.id, r.err, want)
		default:
			if !errors.Is(r.err, want) || want == ratelimit.ErrLimited && errors.Is(r.err, inflight.ErrShed) {
				m.failf("call %d: got %v, want %v", r.id, r.err, want)
			}
			delete(errs, r.id)
		}
	}
	if len(errs) > 0 {
		m.failf("no error yet: %v", errs)
	}
	m.bounds = m.l.LevelBounds()
	m.begin(before)
	m.dispatch(granted)
	if limits := m.limits(); limits {
		m.dispatch(granted)
	}
	if len(m.late) > 0 {
		m.failf("not their turn, and too late: %v", m.late)
	}
	if len(granted) > 0 {
		m.failf("served, and it is not their turn: %v; %v", granted, names(m.wanting()))
	}
	m.settle()
	for _, k := range m.tenants {
		s, _ := m.l.Stats(k.name)
		want := inflight.Stats{Limit: k.limit, Bound: m.boundOf(k), InFlight: k.inFlight, Queued: len(k.waiters), Weight: k.weight, Shed: k.shed, Wait: s.Wait, Oldest: s.Oldest}
		if s != want {
			m.failf("key %s: %+v, want %+v", k.name, s, want)
		}
	}
}

// limits updates the limits from the algorithms, and reports whether any limit has changed.
func (m *scheduleModel) limits() (changed bool) {
	before := m.wanting()
	if m.shared {
		total := m.l.Totals().Limit
		changed, m.total = total != m.total, total
	}
	for _, k := range m.tenants {
		if s, _ := m.l.Stats(k.name); m.adaptive && s.Limit != k.limit {
			changed, k.limit = true, s.Limit
		}
	}
	if changed {
		m.logf("  limits change: total %d, %v", m.total, m.limitsOf())
		m.begin(before)
	}
	return changed
}

func (m *scheduleModel) limitsOf() (all []int) {
	for _, k := range m.tenants {
		all = append(all, k.limit)
	}
	return all
}

func (m *scheduleModel) units() int {
	if m.rng.IntN(3) > 0 {
		return 1
	}
	return 1 + m.rng.IntN(6)
}

func (m *scheduleModel) pick() *tenantModel { return m.tenants[m.rng.IntN(len(m.tenants))] }

func (m *scheduleModel) try() {
	k, n := m.pick(), m.units()
	p, err := m.l.TryAcquire(k.name, n)
	m.logf("TryAcquire(%s, %d): %v", k.name, n, err)
	switch never := m.never(k, n); {
	case m.free(k, n) && never == nil:
		if err != nil {
			m.failf("%d units of %s are free, and TryAcquire says %v", n, k.name, err)
		}
		m.grant(k, n, p)
	case never != nil:
		if !errors.Is(err, never) {
			m.failf("got %v, want %v", err, never)
		}
	default:
		if err == nil {
			m.failf("TryAcquire has passed %v", names(m.wanting()))
		}
		k.shed++
	}
	m.check(m.wanting(), nil)
}

func (m *scheduleModel) surelyLate(w *waiterModel) bool {
	late, _ := m.tooLate(w)
	return late
}

func (m *scheduleModel) acquire() {
	k, n := m.pick(), m.units()
	m.ids++
	w := &waiterModel{id: m.ids, n: n, who: k, since: m.now}
	m.newest = w.id
	defer func() { m.newest = 0 }()
	before, errs := m.wanting(), map[int]error{}
	free, never := m.free(k, n), m.never(k, n)
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	if m.rng.IntN(3) == 0 && (m.timed || len(k.waiters) < m.maxQueue) {
		d := time.Duration(1 + m.rng.Int64N(int64(300*time.Millisecond)))
		w.deadline = m.now + d
		ctx, w.cancel = context.WithTimeout(ctx, d)
	}
	waits := false
	switch all := m.waiting(); {
	case never != nil:
		errs[w.id] = never
	case free:
	case len(k.waiters) >= m.maxQueue && !k.losing:
		errs[w.id], k.shed = ratelimit.ErrLimited, k.shed+1
	case m.surelyLate(w):
		waits = true
	case len(k.waiters) >= m.maxQueue:
		oldest := k.waiters[0]
		errs[oldest.id], k.shed, waits = ratelimit.ErrLimited, k.shed+1, true
		m.drop(oldest)
	case m.maxWaiting > 0 && len(all) >= m.maxWaiting:
		lowest := slices.MinFunc(all, func(a, b *waiterModel) int { return cmp.Or(a.who.priority-b.who.priority, b.id-a.id) })
		if lowest.who.priority >= k.priority {
			errs[w.id], k.shed = ratelimit.ErrLimited, k.shed+1
			break
		}
		errs[lowest.id] = inflight.ErrShed
		lowest.who.shed++
		m.drop(lowest)
		waits = true
	default:
		waits = true
	}
	m.logf("Acquire(%s, %d) is call %d, until %v: free %v, never %v, waits %v, errors %v", k.name, n, w.id, w.deadline, free, never, waits, errs)
	go func() {
		p, err := m.l.Acquire(ctx, k.name, n)
		m.results <- result{w.id, p, err}
	}()
	if free && never == nil {
		synctest.Wait()
		r := <-m.results
		if r.err != nil {
			m.failf("%d units of %s are free, and Acquire says %v", n, k.name, r.err)
		}
		m.grant(k, n, r.permit)
	}
	if waits {
		k.waiters = append(k.waiters, w)
	}
	m.check(before, errs)
}

func (m *scheduleModel) release() {
	if len(m.held) == 0 {
		return
	}
	i := m.rng.IntN(len(m.held))
	p := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	m.logf("release %d of %s", p.n, p.who.name)
	before := m.wanting()
	p.who.inFlight -= p.n
	p.who.used -= float64(p.n) * float64(min(time.Microsecond, m.now-p.start)) / float64(p.who.weight)
	o := inflight.Outcome(m.rng.IntN(4))
	if d := max(1, float64(m.now-p.start)); o == inflight.Success && p.who.hold == 0 { // 0 means unknown
		p.who.hold = d
	} else if o == inflight.Success {
		p.who.hold += (d - p.who.hold) / 16
	}
	p.permit.Done(o)
	p.permit.Release() // a second release
	m.check(before, nil)
}

func (m *scheduleModel) giveUp() {
	all := m.waiting()
	if len(all) == 0 {
		return
	}
	w := all[m.rng.IntN(len(all))]
	m.logf("call %d of %s gives up", w.id, w.who.name)
	before := m.wanting()
	m.drop(w)
	w.who.losing = true
	w.cancel()
	m.check(before, map[int]error{w.id: context.Canceled})
}

// wait lets time pass, but not beyond the next deadline.
func (m *scheduleModel) wait() {
	d := time.Duration(1 + m.rng.Int64N(int64(50*time.Millisecond)))
	if m.rng.IntN(10) == 0 {
		d = time.Duration(1 + m.rng.Int64N(int64(3*time.Second)))
	}
	var first *waiterModel
	for _, w := range m.waiting() {
		if w.deadline > 0 && w.deadline <= m.now+d && (first == nil || w.deadline < first.deadline) {
			first = w
		}
	}
	if first == nil {
		m.advance(d)
		return
	}
	before := m.wanting()
	m.advance(first.deadline - m.now)
	m.logf("the deadline of call %d of %s", first.id, first.who.name)
	m.drop(first)
	first.who.losing = true
	m.check(before, map[int]error{first.id: context.DeadlineExceeded})
}

// expel removes the waiters that can never be served.
func (m *scheduleModel) expel(errs map[int]error) {
	for _, w := range m.waiting() {
		if err := m.never(w.who, w.n); err != nil {
			errs[w.id] = err
			m.drop(w)
		}
	}
}

func (m *scheduleModel) setTotal() {
	if m.bound == math.MaxInt {
		return
	}
	before, errs := m.wanting(), map[int]error{}
	m.bound = 1 + m.rng.IntN(10)
	m.logf("SetTotal(%d)", m.bound)
	require.NoError(m.t, m.l.SetTotal(m.bound))
	m.total = m.bound
	if m.shared {
		m.total = m.l.Totals().Limit
	}
	m.expel(errs)
	m.check(before, errs)
}

func (m *scheduleModel) setLimit() {
	m.base = 1 + m.rng.IntN(8)
	m.logf("SetLimit(%d)", m.base)
	before, errs := m.wanting(), map[int]error{}
	require.NoError(m.t, m.l.SetLimit(m.base))
	m.newLimits()
	m.expel(errs)
	m.check(before, errs)
}

func (m *scheduleModel) newLimits() {
	for _, k := range m.tenants {
		if k.limit = m.boundOf(k); m.adaptive {
			k.limit = m.l.Snapshot()[k.name].Limit
		}
	}
}

func (m *scheduleModel) refresh() {
	k := m.pick()
	before, errs := m.wanting(), map[int]error{}
	switch m.rng.IntN(3) {
	case 0:
		k.weight = 1 + m.rng.IntN(5)
	case 1:
		if priority := m.rng.IntN(3); priority != k.priority {
			k.priority, k.level = priority, false
			before = slices.DeleteFunc(before, func(x *tenantModel) bool { return x == k })
			m.collectsNot(k)
		}
	case 2:
		k.own = m.rng.IntN(9)
	}
	m.logf("tenant %s: limit %d, weight %d, priority %d", k.name, m.boundOf(k), k.weight, k.priority)
	m.l.Refresh(k.name)
	m.newLimits()
	m.expel(errs)
	m.check(before, errs)
}

func (m *scheduleModel) play(steps int) {
	for range steps {
		m.wait()
		switch m.rng.IntN(20) {
		case 0, 1:
			m.try()
		case 2, 3, 4, 5, 6, 7, 8, 9:
			m.acquire()
		case 10, 11, 12, 13, 14, 15:
			m.release()
		case 16:
			m.giveUp()
		case 17:
			m.refresh()
		case 18:
			m.setTotal()
		case 19:
			m.setLimit()
		}
	}
	for len(m.waiting()) > 0 {
		m.giveUp()
	}
	for len(m.held) > 0 {
		m.release()
	}
}

// Random calls at random times are compared with a plain model of the documented behaviour.
func TestRandomSchedulesGoAsDefined(t *testing.T) {
	for seed := range uint64(*schedules) {
		synctest.Test(t, func(t *testing.T) { newSchedule(t, seed).play(200) })
	}
}
