package redislimit

import (
	"errors"

	"github.com/weir-go/ratelimit/internal/meter"
)

// errAnswer is about an answer that no script of this package gives.
var errAnswer = errors.New("redislimit: the script's answer cannot be read")

// answer reads what the script that decides has answered.
func (r *request) answer(reply string) error {
	switch {
	case len(reply) < 2:
		return errAnswer
	case reply[0] == quickAllowed || reply[0] == quickDenied:
		return r.quick(reply)
	case reply[0] == answerOutside:
		return errOutside
	case reply[0] >= answerWrongType:
		return r.failed(failureOf(reply))
	}
	size := 8 + digestSize*len(r.charges)
	if len(reply) == size+7 && reply[8] == answerFull {
		r.charges[0].place, reply = get7(reply[size:]), reply[:size]
	}
	if len(reply) != size {
		return errAnswer
	}
	r.allowed, r.reading = reply[0] == answerAllowed, get7(reply[1:])
	for i := range r.charges {
		r.charges[i].verdict(reply[8+i*digestSize:], r.reading)
	}
	return nil
}

// verdict reads what the general case says of a charge.
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
		c.check(r.reading)
	}
	return nil
}

// mark is what a key was marked with that the decision has created.
func (r *request) mark() uint32 {
	if r.test != nil {
		return r.test[3].(uint32)
	}
	return uint32(r.reading & 0xFFFFFF)
}

// readTime reads the seconds and the microseconds of Redis's TIME, with a point between
// them, and returns what follows, which does not begin with a digit.
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

// stored reads a state as it is stored, or nothing for a new key; or what is told of a log. It
// returns what follows.
func (c *charge) stored(raw string, reading int64, mark uint32) (rest string, err error) {
	// Of a new key nothing is told: raw ends, or the next charge's verdict follows, which is text and no
	// kind. Quick scripts answer with states of the call's own kind only.
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

// usualSize is how long a state is that has no booking in it, or what is told of a log.
func (p *plan) usualSize() int {
	switch p.kind {
	case kindLog:
		return digestSize
	case kindCounter:
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
	if c.plan.isBucket() && c.state.N >= c.plan.units { // where whole µs deny, the script does not look
		return failure{code: answerNotOurs}.err(c.plan.limit.Name)
	}
	return nil
}

// digest reads what is told of a state.
func (c *charge) digest(s string) {
	c.gen, c.changes, c.now = get3(s), s[digestChanges], get7(s[digestNow:])
	c.state = meter.State{At: get7(s[digestAt:]), N: get7(s[digestN:]), M: get7(s[digestM:])}
	c.newest = get7(s[digestNewest:])
	if c.plan.kind == kindCalendar {
		c.state.At = c.now // the script keeps when the window ends
	}
	if c.plan.kind == kindLog {
		c.state.M, c.newest = 0, c.state.M
	} else if c.newest > c.now && !c.plan.meter.Delays() {
		c.state = c.state.Behind(c.newest)
	}
}

// check finds out what the script has found out, and more.
func (c *charge) check(reading int64) {
	c.plan.decided(reading)
	c.weigh(reading)
	if checkVerdict != nil {
		checkVerdict(c, reading)
	}
}

// checkVerdict is set by tests, which compare the script's verdict with Go's.
var checkVerdict func(c *charge, reading int64)
