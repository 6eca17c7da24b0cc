package redislimit

import (
	"context"
	"fmt"
)

// settlement is what is needed to settle one charge.
type settlement struct {
	key     int
	kind    byte
	gen     uint32
	changes byte
	spending
	shares, own int64
}

// settler returns how to settle what a decision has charged.
func (s *session) settler() func(actual int) error {
	l, keys := s.home, append([]string(nil), s.keys...)
	var items []settlement
	for i := range s.charges {
		if c := &s.charges[i]; c.allowed && c.cost > 0 {
			items = append(items, settlement{c.key, c.plan.kind, c.gen, c.changes, c.spending, c.shares, c.own})
		}
	}
	return func(actual int) error { return l.settle(keys, items, int64(actual)) }
}

// settle makes good the difference between what was reserved and what it actually
// cost. It has no context but the limiter's own timeout.
func (l *Limiter) settle(keys []string, items []settlement, actual int64) error {
	b := make([]byte, 0, headSize+settleSize*len(items))
	b = l.head(b, opSettle, len(items))
	for i := range items {
		b = items[i].pack(b, items[i].actual(actual))
	}
	reply, err := l.sender.eval(context.Background(), settleScript, keys, b)
	if err != nil {
		return err
	}
	return l.settled(reply)
}

// settled returns what went wrong according to a reply, if anything did.
func (l *Limiter) settled(reply string) error {
	if len(reply) > 1 && reply[0] >= answerWrongType {
		return failure{key: int(reply[1]) - 1, code: reply[0], text: reply[2:]}.err("")
	}
	return nil
}

// actual returns what the charge has actually cost.
func (s *settlement) actual(actual int64) int64 {
	cost := most
	if s.shares == 0 || actual <= most/s.shares {
		cost = s.shares * actual
	}
	if actual > 0 {
		cost += s.own
	}
	return min(cost, most)
}

// err is the failure as an error. It names the limit, not the key.
func (f failure) err(limit string) error {
	if limit != "" {
		limit = fmt.Sprintf(", under the limit %q", limit)
	}
	switch f.code {
	case answerWrongType:
		return fmt.Errorf("%w: a value of another type%s", ErrForeignState, limit)
	case answerNotOurs:
		return fmt.Errorf("%w: a string that is no state of this version%s", ErrForeignState, limit)
	}
	return classifyAnswer(fmt.Errorf("redis: %s%s", f.text, limit), f.text)
}
