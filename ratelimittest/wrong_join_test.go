package ratelimittest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// joinsWrongly is the engine in example_joint_test.go with a bug in its Joint.
type joinsWrongly struct {
	*WindowEngine
	bug joinBug
}

// joinBug replaces a Joint's Decide.
type joinBug func(j windowJoint, ctx context.Context, charges []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error)

func (l *joinsWrongly) Join(limiters []ratelimit.Joining) (ratelimit.Joint, error) {
	var j windowJoint
	for _, x := range limiters {
		if other, ok := x.Limiter.(*joinsWrongly); ok {
			j = append(j, other.WindowEngine)
		} else if l.bug == nil {
			j = append(j, l.WindowEngine) // even a limiter of another store
		} else {
			return nil, fmt.Errorf("another store")
		}
	}
	return wrongJoint{j, l.bug}, nil
}

type wrongJoint struct {
	windowJoint
	bug joinBug
}

func (w wrongJoint) Decide(ctx context.Context, charges []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
	if w.bug == nil {
		return w.windowJoint.Decide(ctx, charges, q)
	}
	return w.bug(w.windowJoint, ctx, charges, q)
}

func TestWrongJointsAreFound(t *testing.T) {
	decide := windowJoint.Decide
	bugs := map[string]struct {
		bug   joinBug
		found string
	}{
		"it takes limiters of another store": {nil, "takes a limiter of another store"},
		"it charges the keys one after the other": {func(j windowJoint, ctx context.Context, all []ratelimit.Charge, q ratelimit.JointRequest) (settle func([]int) error, err error) {
			if q.Settled || q.Peek {
				return decide(j, ctx, all, q)
			}
			for i := range all {
				if settle, err = decide(j, ctx, all[i:i+1], q); err != nil || !all[i].Shadow && !all[i].Decision.Allowed {
					return nil, err
				}
			}
			return settle, nil
		}, "where two keys are charged together or not at all"},
		"a Peek charges": {func(j windowJoint, ctx context.Context, all []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
			q.Peek = false
			return decide(j, ctx, all, q)
		}, "Peek charges nothing"},
		"a shadow denies": {func(j windowJoint, ctx context.Context, all []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
			for i := range all {
				all[i].Shadow = false
			}
			return decide(j, ctx, all, q)
		}, "a shadow without budget denies"},
		"all settle at the first cost": {func(j windowJoint, ctx context.Context, all []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
			settle, err := decide(j, ctx, all, q)
			if settle == nil {
				return nil, err
			}
			return func(costs []int) error {
				for i := range costs {
					costs[i] = costs[0]
				}
				return settle(costs)
			}, err
		}, "were reserved of"},
		"it is not locked between the check and the charge": {func(j windowJoint, ctx context.Context, all []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
			if q.Settled {
				return decide(j, ctx, all, q)
			}
			look := q
			look.Peek = true
			if _, err := decide(j, ctx, all, look); err != nil || q.Peek {
				return nil, err
			}
			for i := range all {
				if !all[i].Shadow && !all[i].Decision.Allowed {
					return nil, nil
				}
			}
			for i := range all {
				time.Sleep(time.Millisecond)
				_, _ = decide(j, ctx, all[i:i+1], q)
			}
			return nil, nil
		}, "at once"},
		"its figures are those of before": {func(j windowJoint, ctx context.Context, all []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
			settle, err := decide(j, ctx, all, q)
			for i := range all {
				if d := &all[i].Decision; d.Allowed && !q.Peek {
					d.Remaining += all[i].Cost
				}
			}
			return settle, err
		}, "answers"},
		"it forgets the limit of the request": {func(j windowJoint, ctx context.Context, all []ratelimit.Charge, q ratelimit.JointRequest) (func([]int) error, error) {
			for i := range all {
				all[i].Limit = j[all[i].Limiter].limit
			}
			return decide(j, ctx, all, q)
		}, "under the limits that it has resolved"},
	}
	for name, c := range bugs {
		t.Run(name, func(t *testing.T) {
			clock := new(ratelimittest.Clock)
			store := &WindowStore{clock: clock, windows: make(map[string]countedWindow)}
			made := 0
			err := ratelimittest.Check(ratelimittest.Config{
				Clock: clock, Histories: 10, Seed: 5,
				Accepts: func(l ratelimit.Limit) bool {
					return l.Algorithm == ratelimit.AlgorithmFixedWindow && l.Rate.Units < 1e9 && l.Rate.Per < 1000*time.Hour
				},
				New: func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
					made++
					e, err := NewWindowEngine(store, fmt.Sprint(made), limit)
					if name == "it forgets the limit of the request" {
						return &setsWindows{joinsWrongly{e, c.bug}}, err
					}
					return &joinsWrongly{e, c.bug}, err
				},
			})
			require.Error(t, err)
			assert.Contains(t, err.Error(), "the promise of Join")
			assert.Contains(t, err.Error(), c.found)
		})
	}
}

// setsWindows adds a SetLimit.
type setsWindows struct{ joinsWrongly }

func (l *setsWindows) SetLimit(limit ratelimit.Limit) error {
	l.limit = limit
	return limit.Validate()
}

func (l *setsWindows) Join(limiters []ratelimit.Joining) (ratelimit.Joint, error) {
	var j windowJoint
	for _, x := range limiters {
		if other, ok := x.Limiter.(*setsWindows); ok {
			j = append(j, other.WindowEngine)
		} else {
			return nil, fmt.Errorf("another store")
		}
	}
	return wrongJoint{j, l.bug}, nil
}
