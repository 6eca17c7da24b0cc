package policy_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
)

// upTo returns an engine whose store can count no more than the given number of units.
func upTo(most int) policy.Engine {
	return func(b policy.Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		if n := b.Limit.Rate.Units; n > most {
			return nil, fmt.Errorf("%w: %d units, want at most %d", ratelimit.ErrInvalidLimit, n, most)
		}
		if before != nil {
			return before, nil
		}
		return ratelimit.New[string](b.Limit, nil)
	}
}

func TestACheckAgainstAnEngineReportsEachLimitThatItCannotCount(t *testing.T) {
	const file = `rules:
- {name: a, key: user, limit: sliding-log 9/h}
- name: b
  key: user
  limit: sliding-log 5000/h
  plans:
    pro: sliding-log 6000/h
    small: sliding-log 6/h
  overrides:
  - {key: ann, limit: sliding-log 7000/h}
- {name: c, match: {route: [/healthz]}, allow: true}
`
	none := func(policy.Budget, ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) { return nil, nil }
	few, many := policy.Memory(&policy.MemoryOptions{Processes: -1}), policy.Memory(&policy.MemoryOptions{Processes: 100})
	for name, c := range map[string]struct {
		text    string
		engines []policy.Engine
		want    []string // each error's text, after its line, column, rule and field
		is      error
	}{
		"no engine":             {text: file},
		"memory":                {text: file, engines: []policy.Engine{policy.Memory(nil)}},
		"a high maximum":        {text: file, engines: []policy.Engine{upTo(7000)}},
		"memory and a maximum":  {text: file, engines: []policy.Engine{policy.Memory(nil), upTo(7000)}},
		"a nil engine is none":  {text: file, engines: []policy.Engine{many, nil}},
		"a low maximum":         {text: file, engines: []policy.Engine{policy.Memory(nil), upTo(100)}, want: []string{"5:3 b rules[1].limit:", "7:5 b rules[1].plans.pro:", "10:5 b rules[1].overrides[0]:"}, is: ratelimit.ErrInvalidLimit},
		"the limit of defaults": {text: "defaults: {limit: sliding-log 5000/h}\nrules: [{name: a}]", engines: []policy.Engine{upTo(100)}, want: []string{"5000 units"}, is: ratelimit.ErrInvalidLimit},
		"an invalid option":     {text: "rules: [{name: a, limit: blocked}]", engines: []policy.Engine{few}, want: []string{"MemoryOptions.Processes is -1"}},
		"a nil limiter":         {text: file, engines: []policy.Engine{none}, want: []string{`rule "a": rules: the limiter that the engine returned is nil`}},
		// not checked further
		"an invalid file": {text: "rules: [{name: a, limit: often}]", engines: []policy.Engine{upTo(1)}, want: []string{"often"}},
	} {
		t.Run(name, func(t *testing.T) {
			set, all := policy.Check([]byte(c.text), c.engines...)
			require.Len(t, all, len(c.want), "%v", all)
			assert.Equal(t, c.want == nil, set != nil)
			for i, e := range all {
				assert.Contains(t, fmt.Sprintf("%d:%d %s %s: %v", e.Line, e.Column, e.Rule, e.Field, e), c.want[i])
				if c.is != nil {
					assert.ErrorIs(t, e, c.is)
				}
			}
		})
	}
}

// TestACheckChangesNothingOfAnEngineInUse checks a new file against
// the engine of a running service, as an operator's page does.
func TestACheckChangesNothingOfAnEngineInUse(t *testing.T) {
	engine := policy.Memory(nil)
	p, err := policy.New(apiOf(10), &policy.Options{Engine: engine})
	require.NoError(t, err)
	ann := policy.Attributes{"user": "ann"}
	require.True(t, p.Allow(ann, 7))
	_, all := policy.Check([]byte("rules: [{name: other, limit: fixed-window 9/h}]"), engine)
	require.Empty(t, all)
	require.NoError(t, p.Update(apiOf(11)))
	assert.True(t, p.Allow(ann, 4))
	assert.False(t, p.Allow(ann, 1), "the spending has stayed")
}

// refusing is an engine in memory. It refuses sets while err is not nil.
type refusing struct{ err error }

func (e *refusing) engine() policy.Engine {
	memory := policy.Memory(nil)
	return func(b policy.Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		if e.err != nil {
			return nil, e.err
		}
		return memory(b, before)
	}
}

// TestASetThatOneEngineRefusesIsInForceInNone updates policies with a stand-in to a set refused
// by one of the two engines. Neither the policies nor their stand-in may change, whichever
// refuses and whichever is updated. Budgets of rules missing from the refused set stay, too.
func TestASetThatOneEngineRefusesIsInForceInNone(t *testing.T) {
	both := func(units int) *policy.Set {
		limit := ratelimit.FixedWindow(ratelimit.PerHour(units))
		return &policy.Set{Rules: []policy.Rule{{Name: "api", Key: []string{"user"}, Limit: limit}, {Name: "all", Limit: ratelimit.FixedWindow(ratelimit.PerHour(100))}}}
	}
	ann := policy.Attributes{"user": "ann"}
	for _, refuses := range []string{"the lead", "the stand-in", "the stand-in of the stand-in"} {
		for _, updated := range []string{"the lead", "the stand-in"} {
			t.Run(refuses+" refuses, "+updated+" is updated", func(t *testing.T) {
				store := new(refusing)
				engine := func(name string) policy.Engine {
					if name == refuses {
						return store.engine()
					}
					return policy.Memory(nil)
				}
				third, err := policy.New(nil, &policy.Options{Engine: engine("the stand-in of the stand-in")})
				require.NoError(t, err)
				local, err := policy.New(nil, &policy.Options{Engine: engine("the stand-in"), StandIn: third})
				require.NoError(t, err)
				shared, err := policy.New(both(10), &policy.Options{Engine: engine("the lead"), StandIn: local})
				require.NoError(t, err)
				all := []*policy.Policies{shared, local, third}
				target := map[string]*policy.Policies{"the lead": shared, "the stand-in": local}[updated]
				for _, p := range all {
					require.Equal(t, 10, p.Current().Rules[0].Limit.Rate.Units)
					require.True(t, p.Allow(ann, 7))
				}
				store.err = errors.New("not countable")
				before := shared.Stats().Generation
				refused := apiOf(11) // without the rule named all
				require.ErrorContains(t, target.Update(refused), "not countable")
				for i, p := range all {
					assert.Equal(t, both(10), p.Current(), i)
					require.ErrorContains(t, p.Stats().LastError, "not countable", "operators of either see why")
				}
				assert.Equal(t, before, shared.Stats().Generation)
				store.err = nil
				require.NoError(t, target.Update(both(12)))
				for i, p := range all {
					require.NoError(t, p.Stats().LastError)
					d, err := p.Peek(t.Context(), policy.Subject{Rule: "all"}, 1)
					require.NoError(t, err)
					assert.Equal(t, 93, d.Remaining, "%d: the budgets that a refused set has not are kept", i)
					assert.True(t, p.Allow(ann, 5), i)
					assert.False(t, p.Allow(ann, 1), i)
				}
			})
		}
	}
}

func TestAStandInHasOneLead(t *testing.T) {
	local := ratelimit.Must(policy.New(apiOf(10), nil))
	bad := &refusing{errors.New("no")}
	_, err := policy.New(apiOf(11), &policy.Options{Engine: bad.engine(), StandIn: local})
	require.Error(t, err)
	assert.Equal(t, apiOf(10), local.Current(), "a New that fails changes nothing")
	require.NoError(t, local.Update(apiOf(9)), "nor does it keep the stand-in")
	shared, err := policy.New(apiOf(11), &policy.Options{StandIn: local})
	require.NoError(t, err)
	assert.Equal(t, apiOf(11), local.Current())
	_, err = policy.New(apiOf(12), &policy.Options{StandIn: local})
	require.ErrorContains(t, err, "stands in for other policies already")
	assert.Equal(t, apiOf(11), shared.Current())
}

// apiOf returns a set with one limit.
func apiOf(units int) *policy.Set {
	return &policy.Set{Rules: []policy.Rule{{Name: "api", Key: []string{"user"}, Limit: ratelimit.FixedWindow(ratelimit.PerHour(units))}}}
}
