package sqllimit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// hashed has the keys hashed that are too long for a row, as a user would.
type hashed struct{ *Limiter }

func short(key string) string {
	if len(key) <= maxKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "hash " + hex.EncodeToString(sum[:])
}

func (l hashed) Allow(key string, cost int) bool { return l.Limiter.Allow(short(key), cost) }

func (l hashed) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return l.Limiter.Take(ctx, short(key), cost)
}

func (l hashed) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return l.Limiter.Peek(ctx, short(key), cost)
}

// The same suite runs on real servers in proofs.
func TestSuite(t *testing.T) {
	clock := new(ratelimittest.Clock)
	_, db := newFake(t, func() int64 { return clock.Wall().UnixMicro() })
	made := 0
	ratelimittest.Run(t, ratelimittest.Config{
		Clock:      clock,
		Resolution: time.Microsecond,
		Histories:  6,
		Accepts: func(l ratelimit.Limit) bool {
			_, err := newPlan(l)
			return err == nil
		},
		Want: []string{"Peek", "Reserve", "Wait", "Adjust", "Reset", "SetLimit", "Calendar"},
		New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
			made++
			l, err := New(db, limit, &Options{Name: fmt.Sprint("suite", made), Timeout: 20 * time.Second})
			return hashed{l}, err
		},
		NewPair: func(limit ratelimit.Limit) (a, b ratelimit.Limiter[string], err error) {
			made++
			o := &Options{Name: fmt.Sprint("pair", made), Timeout: 20 * time.Second}
			one, err := New(db, limit, o)
			if err != nil {
				return nil, nil, err
			}
			other, err := New(db, limit, o)
			return hashed{one}, hashed{other}, err
		},
	})
}
