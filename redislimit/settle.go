package redislimit

import (
	"context"
	"fmt"
	"slices"

	"github.com/weir-go/ratelimit/internal/meter"
)

// settlement holds the data needed to settle one charge.
type settlement struct {
	key     int
	plan    *plan // its plan when it was charged
	gen     uint32
	changes byte
	meter.Spending
	shares, own int64
}

// settler returns a function to settle a decision's charges. Its only context is the store's own timeout.
func (r *request) settler() func(actual int) error {
	store := r.store
	var keys []string
	var items []settlement
	for i := range r.charges {
		c := &r.charges[i]
		if !c.allowed || c.cost == 0 {
			continue
		}
		item := r.settlementOf(c)
		keys, item.key = withKey(keys, r.keys[c.key])
		items = append(items, item)
	}
	return func(actual int) error {
		_, err := store.settle(keys, items, int64(actual), nil)
		return err
	}
}

// settlementOf returns the data needed to settle a charge.
func (r *request) settlementOf(c *charge) settlement {
	item := settlement{0, c.plan, c.gen, c.changes, c.offer.Spending(c.cost), c.shares, c.own}
	if c.plan.kind == kindCalendar {
		item.Part = c.state.M // the window of its spending
	} else if c.plan.kind == kindHeld {
		item.Part = c.owner
	} else if c.plan.kind == kindToken && r.open {
		item.Part = 1 // the key keeps it as an open reservation
	}
	return item
}

// withKey returns the keys and the index of key. It appends a missing key.
func withKey(keys []string, key string) ([]string, int) {
	for i, k := range keys {
		if k == key {
			return keys, i
		}
	}
	return append(keys, key), len(keys)
}

// settle sends the necessary corrections: none if the real cost equals the charged one. A cancellation begins
// with the last charge, because a leaky bucket gives back only at its queue's end: then all charges of the
// decision come back. If the keys are followed, settle sends all charges, and returns the answers by key.
func (s *store) settle(keys []string, items []settlement, actual int64, follow *correctionFollowed) (string, error) {
	b, n := make([]byte, headSize, headSize+settleSize*len(items)), 0
	for i := range items {
		item := &items[i]
		if actual == 0 {
			item = &items[len(items)-1-i]
		}
		if is := item.actual(actual); is != item.Cost || follow != nil {
			b, n = item.pack(b, is), n+1
		}
	}
	if n == 0 {
		return "", nil
	}
	op := byte(opSettle)
	if follow != nil && follow.estimates {
		op = opSettleOpen
	}
	head(b[:0], op, n)
	return s.correct(context.Background(), keys, b, follow != nil, func(b []byte, now int64) []byte {
		for i := range items {
			p := items[i].plan
			if b, now = p.putDates(b, s, now); p.latest() != p {
				b, now = p.latest().putDates(b, s, now)
			}
		}
		return b
	})
}

// correctionFollowed states how a settlement's keys are followed.
type correctionFollowed struct {
	estimates bool // the charges were estimates
}

// correct runs the script for settlements, extensions and adjustments,
// with the necessary data of calendars, and returns its reply.
func (s *store) correct(ctx context.Context, keys []string, payload []byte, follows bool, dates func(b []byte, now int64) []byte) (string, error) {
	script := s.scripts.settle
	if follows {
		script, keys = following.correct, sumKeys(keys)
	}
	return s.corrected(ctx, script, keys, payload, dates)
}

// corrected runs a script, again with other data of calendars if the time is outside these.
func (s *store) corrected(ctx context.Context, script *script, keys []string, payload []byte, dates func(b []byte, now int64) []byte) (string, error) {
	c := new(call)
	for tries := 0; ; tries++ {
		c = &call{script: script, keys: keys, payload: dates(slices.Clip(payload), 0), test: s.testWords(), deadline: c.deadline}
		reply, err := s.eval(ctx, c)
		switch {
		case err != nil || len(reply) < 2 || reply[0] < answerWrongType:
			return reply, err
		case reply[0] != answerOutside:
			return "", failureOf(reply).err("")
		case tries == maxOutside:
			return "", errOutside
		}
		s.learn(reply)
	}
}

// actual returns the charge's real cost. For units in use it is always 0: they are given back.
func (s *settlement) actual(actual int64) int64 {
	if s.plan.kind == kindHeld {
		return 0
	}
	cost := times(s.shares, actual)
	if actual > 0 {
		cost += s.own
	}
	return min(cost, most)
}

// times returns a·b, at most 2^52.
func times(a, b int64) int64 {
	if a > 0 && b > most/a {
		return most
	}
	return a * b
}

// pack appends the data needed to settle a charge.
func (s *settlement) pack(b []byte, actual int64) []byte {
	b = append(b, byte(s.key+1), s.plan.kind, s.changes)
	b = put3(b, s.gen)
	for _, n := range [...]int64{s.Cost, min(actual, most), s.At, s.Part} {
		b = put7(b, n)
	}
	p := s.plan.latest()
	b = append(b, p.kind)
	for _, n := range [...]int64{p.units, p.per, p.since.Load(), p.capacity} {
		b = put7(b, n)
	}
	return b
}

// correction is a change of one key's spending.
type correction struct {
	key   int
	plan  *plan
	delta int64
}

func (c *correction) pack(b []byte) []byte {
	sign, n := byte(0), c.delta
	if n < 0 {
		sign, n = 1, -max(n, -most)
	}
	b = append(b, byte(c.key+1), c.plan.kind, sign)
	for _, figure := range [...]int64{min(n, most), c.plan.units, c.plan.per, c.plan.since.Load(), c.plan.capacity} {
		b = put7(b, figure)
	}
	return b
}

// adjust corrects keys. It returns the reply, with the answers by key if they are followed.
func (s *store) adjust(ctx context.Context, keys []string, follows bool, items ...correction) (string, error) {
	b := make([]byte, 0, headSize+adjustSize*len(items))
	b = head(b, opAdjust, len(items))
	for i := range items {
		b = items[i].pack(b)
	}
	return s.correct(ctx, keys, b, follows, func(b []byte, now int64) []byte {
		for i := range items {
			b, now = items[i].plan.putDates(b, s, now)
		}
		return b
	})
}

// adjuster returns a function to settle a reservation of 0: it charges the enforcing layers with the caller's cost.
func (r *request) adjuster() func(actual int) error {
	store, keys := r.store, append([]string(nil), r.keys...)
	charges := append([]charge(nil), r.charges...)
	return func(actual int) error {
		var items []correction
		for i := range charges {
			if c := &charges[i]; c.shares > 0 && !c.shadow && actual > 0 && c.plan.kind != kindHeld {
				items = append(items, correction{c.key, c.plan.latest(), times(c.shares, int64(actual))})
			}
		}
		if len(items) == 0 {
			return nil
		}
		_, err := store.adjust(context.Background(), keys, false, items...)
		return err
	}
}

// failure is why a script could not read a key.
type failure struct {
	key  int
	code byte
	text string
}

func failureOf(reply string) failure {
	return failure{key: int(reply[1]) - 1, code: reply[0], text: reply[2:]}
}

// err is the failure as an error. It names the limit, not the key.
func (f failure) err(limit string) error {
	if limit != "" {
		limit = fmt.Sprintf(", under the limit %q", limit)
	}
	switch f.code {
	case answerWrongType:
		return fmt.Errorf("%w: a value of another type%s", errForeignState, limit)
	case answerNotOurs:
		return fmt.Errorf("%w: a string that is no state of this version%s", errForeignState, limit)
	}
	return classifyAnswer(fmt.Errorf("redis: %s%s", f.text, limit), f.text, false)
}
