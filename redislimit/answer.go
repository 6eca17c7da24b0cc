package redislimit

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/tentative"
)

// An answer's first byte in the usual case, as text. The time and the stored states follow.
const (
	quickDenied  = '-'
	quickAllowed = '+'
	quickNoted   = '=' // a denial repeated from a note: the time, the same sign and the note's reply follow
)

// errAnswer is the error for an answer unknown to this package's scripts.
var errAnswer = errors.New("redislimit: the script's answer cannot be read")

// answer reads a reply of the deciding script.
func (r *request) answer(reply string) (err error) {
	if r.follows {
		if reply, err = r.sums(reply); err != nil {
			return err
		}
	}
	if r.tentative != "" {
		reply = r.recorded(reply)
	}
	switch {
	case len(reply) < 2:
		return errAnswer
	case reply[0] == quickAllowed || reply[0] == quickDenied:
		return r.quick(reply)
	case reply[0] == quickNoted:
		return r.noted(reply)
	case reply[0] == answerOutside:
		return errOutside
	case reply[0] >= answerWrongType:
		return r.failed(failureOf(reply))
	}
	size := 8 + digestSize*len(r.charges)
	if len(reply) < size {
		return errAnswer
	}
	rest := reply[size:]
	if reply[8] == answerFull && len(rest) >= 7 {
		r.charges[0].place, rest = get7(rest), rest[7:]
	}
	for ; len(rest) >= looseSize && int(rest[0])-1 < len(r.charges); rest = rest[looseSize:] {
		r.charges[rest[0]-1].loosened(rest[1:])
	}
	if rest != "" {
		return errAnswer
	}
	r.allowed, r.reading = reply[0] == answerAllowed, get7(reply[1:])
	for i := range r.charges {
		r.charges[i].verdict(reply[8+i*digestSize:], r.reading)
	}
	return nil
}

// recorded takes the record of a tentative booking off the reply.
func (r *request) recorded(reply string) string {
	size := 1 + tentativeSize - tentative.NumberSize
	if len(reply) < size || reply[0] > answerAllowed {
		return reply
	}
	reply, tail := reply[:len(reply)-size], reply[len(reply)-size:]
	if r.record = ""; tail[0] > 0 {
		r.record, r.shared = r.tentative+tail[1:], tail[0] > 1
	}
	return reply
}

// sums removes the sums from the end of a decision's reply.
func (r *request) sums(reply string) (string, error) {
	size := sumSize * len(r.keys)
	if reply == "" || reply[0] > answerAllowed {
		return reply, nil
	}
	if len(reply) < size {
		return "", errAnswer
	}
	sums := reply[len(reply)-size:]
	r.opens = r.opens[:0]
	for i := range r.keys {
		r.opens = append(r.opens, get7(sums[sumSize*i:]))
	}
	return reply[:len(reply)-size], nil
}

// verdict reads the general case's reply about a charge.
func (c *charge) verdict(s string, reading int64) {
	if c.allowed = s[0] == answerAllowed; s[0] > answerAllowed && c.place == 0 {
		c.failed = s[0]
		return
	}
	c.digest(s[1:])
	c.check(reading)
}

// quick reads the answer of the usual case. With several charges, each has its own verdict.
func (r *request) quick(reply string) (err error) {
	r.allowed = reply[0] == quickAllowed
	var rest string
	if r.reading, rest, err = readTime(reply[1:]); err != nil {
		return err
	}
	for i := range r.charges {
		c := &r.charges[i]
		if c.allowed = r.allowed; len(r.charges) > 1 {
			if rest == "" {
				return errAnswer
			}
			c.allowed, rest = rest[0] == quickAllowed, rest[1:]
		}
		if rest, err = c.stored(rest, r.reading, r.mark()); err != nil {
			return err
		}
		if len(r.charges) == 1 && len(rest) == 7 {
			c.bookedUntil(get7(rest))
		}
		c.check(r.reading)
	}
	return nil
}

// noted reads the answer of a denial repeated from a note.
func (r *request) noted(reply string) (err error) {
	var rest string
	if r.reading, rest, err = readTime(reply[1:]); err != nil {
		return err
	}
	if len(rest) != 1+noteReply || len(r.charges) != 1 {
		return errAnswer
	}
	c, rest := &r.charges[0], rest[1:]
	r.allowed, c.allowed = false, false
	if loose := rest[noteLoose-noteDigest:]; loose[0] == 1 {
		c.loosened(loose[1:])
	}
	c.gen, c.changes, c.now = get3(rest), rest[digestChanges], r.reading
	c.digested(rest[digestNow:])
	c.check(r.reading)
	return nil
}

// mark returns the mark of a newly created key.
func (r *request) mark() uint32 {
	if r.test != nil {
		return r.test[3].(uint32)
	}
	return uint32(r.reading & 0xFFFFFF)
}

// readTime reads the seconds and the microseconds of Redis's TIME, with a
// point between them, and returns the rest: it does not begin with a digit.
func readTime(s string) (micros int64, rest string, err error) {
	seconds, rest := readDigits(s)
	if rest == "" || rest[0] != '.' {
		return 0, "", errAnswer
	}
	micros, rest = readDigits(rest[1:])
	return seconds*1e6 + micros, rest, nil
}

func readDigits(s string) (n int64, rest string) {
	i := 0
	for ; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
		n = n*10 + int64(s[i]-'0')
	}
	return n, s[i:]
}

// stored reads a stored state, or the digest of a log; a new key has neither. It returns the rest of the text.
func (c *charge) stored(raw string, reading int64, mark uint32) (rest string, err error) {
	// There is no data about a new key. Then raw ends, or the next charge's verdict follows,
	// which is text and so has no kind. Quick scripts return only states of the call's own kind.
	if c.plan.kind == kindLog && len(raw) >= logDenied && raw[0] == kindLog-asideFlag {
		c.waits(raw[1:], reading)
		return raw[logDenied:], nil
	}
	if raw == "" || raw[0] != c.plan.kind {
		c.now, c.state, c.gen, c.changes = reading, meter.State{At: reading}, mark, 0
		return raw, nil
	}
	size := c.plan.usualSize()
	if len(raw) < size {
		return "", errAnswer
	}
	if c.plan.kind == kindLog {
		c.digest(raw[1:])
		return raw[size:], nil
	}
	return raw[size:], c.unpack(raw[:size], reading)
}

// waits reads the answer of a log that denies the cost until one of its spendings has left. All its spendings still count.
func (c *charge) waits(s string, reading int64) {
	const stored = wideSize - stateGen
	c.gen, c.changes, c.now = get3(s), s[digestChanges], reading
	base, wait, newest, sum := get7(s[stored-7:]), get7(s[stored:]), get7(s[stored+7:]), get7(s[stored+14:])
	c.state, c.newest, c.spent = meter.State{At: max(reading, newest), N: sum - base}, newest, sum-base
	c.next = c.state.At
	c.state.At = max(c.state.At, wait+c.plan.per)
	if c.cost == 1 || c.state.N >= c.plan.units {
		c.next = c.state.At
	}
}

// usualSize returns the size of a state without bookings, or of a log's digest.
func (p *plan) usualSize() int {
	switch p.kind {
	case kindLog:
		return digestSize
	case kindCounter, kindCalendar:
		return wideSize
	}
	return stateSize
}

// unpack reads a state as it is stored.
func (c *charge) unpack(raw string, reading int64) error {
	c.now, c.state = max(reading, get7(raw[stateLast:])), meter.State{At: get7(raw[stateAt:]), N: get7(raw[stateN:])}
	c.gen, c.changes = get3(raw[stateGen:]), raw[stateChanges]
	if len(raw) > stateSize {
		c.state.M = get7(raw[stateM:])
	}
	if c.plan.kind == kindCalendar {
		c.state.At = c.now // the script has stored the window's end
	}
	if c.plan.isBucket() && c.state.N >= c.plan.units { // if even whole µs deny, the script does not return the fraction
		return failure{code: answerNotOurs}.err(c.plan.limit.Name)
	}
	return nil
}

// digest reads a state's digest.
func (c *charge) digest(s string) {
	c.gen, c.changes, c.now = get3(s), s[digestChanges], get7(s[digestNow:])
	c.digested(s[digestAt:])
}

// digested reads the part of a digest behind the decision's instant.
func (c *charge) digested(s string) {
	c.state = meter.State{At: get7(s), N: get7(s[digestN-digestAt:]), M: get7(s[digestM-digestAt:])}
	newest := get7(s[digestNewest-digestAt:])
	if c.plan.kind == kindCalendar {
		c.state.At = c.now // the script has stored the window's end
	}
	if c.plan.kind == kindLog {
		c.state.M, c.newest, c.spent = 0, c.state.M, newest
		if !c.loose {
			c.next = get7(s[digestNext-digestAt:])
		}
		return
	}
	c.bookedUntil(newest)
}

// bookedUntil puts the state behind the key's last booking.
func (c *charge) bookedUntil(newest int64) {
	if c.newest = newest; newest > c.now && !c.plan.meter.Delays() {
		c.state = c.state.Behind(newest)
	}
}

// loosened reads the script's report on a key whose bookings are loose.
func (c *charge) loosened(s string) {
	c.loose, c.gap, c.left, c.owes, c.next = true, get7(s), get7(s[7:]), get7(s[14:]), get7(s[21:])
}

// check repeats the script's checks, and makes more.
func (c *charge) check(reading int64) {
	c.plan.decided(reading)
	c.weigh(reading)
	if compare := checkVerdict.Load(); compare != nil {
		(*compare)(c, reading)
	}
}

// checkVerdict is set by tests, to compare the script's verdict with Go's. An earlier test's calls may still be under way.
var checkVerdict atomic.Pointer[func(c *charge, reading int64)]

// weigh determines the instant when the cost is spent, and the first reading to allow it at.
func (c *charge) weigh(reading int64) {
	now := meter.Moment{Reading: reading, Now: c.now}
	c.offer = now.Free()
	switch p := c.plan; {
	case c.cost == 0:
	case c.loose && c.gap > 0:
		c.at(c.gap, reading)
	case p.kind == kindLog:
		c.at(c.state.At, reading)
	case p.kind == kindHeld:
		c.offer.At = c.after(c.cost)
		if c.offer.At > c.now {
			c.offer.Retry = c.offer.At
		}
	default:
		p.meter.Advance(&c.state, c.now)
		c.offer = p.meter.Offer(c.state, now, c.cost, c.ahead)
		if p.dates != nil {
			// Bookings reach no further than the next window: the script has no data about later ones.
			if boundary := p.dates.At(reading).To; c.offer.At > c.now && c.offer.At > boundary {
				c.offer.Retry = max(c.offer.Retry, boundary)
			}
		}
	}
	c.offer.Retry = max(c.offer.Retry, c.place)
}

// at sets the instant when the cost would be spent.
func (c *charge) at(at, reading int64) {
	if c.offer.At = at; at > c.now {
		c.offer.Retry = max(reading, at-c.ahead)
	}
}

// full is the error of a cost whose booking finds no room.
func (c *charge) full(reading int64) error {
	return fmt.Errorf("%w: the key has %d bookings ahead, and could not give back one more; there is place in %v, under %v",
		ratelimit.ErrLimited, c.plan.mostBooked(), between(reading, c.place), c.plan.limit)
}

// mostBooked returns the maximum number of a key's bookings that can be given back.
func (p *plan) mostBooked() int {
	if p.kind == kindLog {
		return maxQueued
	}
	return maxBooked
}

// spend advances the state by the cost.
func (c *charge) spend() {
	p, at := c.plan, c.offer.At
	switch {
	case c.cost == 0, c.loose: // the script has reported the state after the cost
		return
	case p.kind == kindLog:
		c.newest = max(c.newest, at)
		c.spent += c.cost
		if at == c.now {
			c.state.N += c.cost
		}
		return
	case p.kind == kindHeld:
		c.state.N += c.cost // its age is 0
		return
	}
	keep := meter.Final
	if !p.meter.Delays() {
		keep = meter.Booked
	}
	p.meter.Accept(&c.state, c.now, c.offer, c.cost, keep)
	if !p.meter.Delays() && at > c.now {
		c.newest = at
	}
}

// remaining returns the largest cost that fits now.
func (c *charge) remaining() int64 {
	switch p := c.plan; {
	case c.loose && c.left <= most:
		return c.left
	case p.kind == kindHeld:
		return max(0, p.units-c.state.N)
	case p.kind != kindLog:
		return p.meter.Remaining(c.state, c.now)
	case c.newest > c.now:
		return 0
	default:
		return max(0, p.units-c.state.N)
	}
}

// debt returns the units above the capacity, spent or booked.
func (c *charge) debt() int64 {
	switch p := c.plan; {
	case c.loose && c.left <= most:
		return c.owes
	case p.kind == kindLog:
		return max(0, c.spent-p.units)
	case p.kind == kindHeld:
		return max(0, c.state.N-p.units)
	default:
		return p.meter.Debt(c.state, c.now)
	}
}

// regained returns the first instant when the key has its full budget.
func (c *charge) regained() int64 {
	switch p := c.plan; {
	case p.kind == kindHeld && c.state.N > 0:
		return c.now + c.back(1)
	case p.kind == kindHeld:
		return c.now
	case p.kind != kindLog:
		return max(c.now, c.newest, p.meter.Regained(c.state))
	case c.newest > 0:
		return max(c.now, c.newest+p.per)
	}
	return c.now
}

// nextUnit returns the instant when one more unit fits. It is used if none remains.
func (c *charge) nextUnit() int64 {
	switch {
	case c.plan.kind == kindLog, c.loose && c.next > 0:
		return c.next
	case c.plan.kind == kindHeld:
		return c.after(1)
	}
	return c.plan.meter.Earliest(c.state, c.now, 1)
}

// between returns the time from one instant to a later one.
func between(from, to int64) time.Duration {
	if to-from > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(to-from) * time.Microsecond
}

func clampInt(n int64) int { return int(min(n, math.MaxInt)) }

// decide fills in the decision on a single charge.
func (c *charge) decide(reading int64, d *ratelimit.Decision) {
	d.Limit, d.Allowed = c.plan.limit, c.allowed
	if !c.allowed {
		d.RetryAfter = between(reading, c.offer.Retry)
	} else if c.offer.At > c.now {
		d.Delay = between(reading, c.offer.At)
	}
	c.standing(reading, d)
}

// standing fills in the key's standing.
func (c *charge) standing(reading int64, d *ratelimit.Decision) {
	d.Remaining, d.Debt = clampInt(c.remaining()), clampInt(c.debt())
	if d.ResetAfter = between(reading, c.regained()); d.Remaining == 0 {
		d.NextAfter = between(reading, c.nextUnit())
	}
}
