package pace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// seen returns a budget of 16 requests, as reported by an answer at the instant at. The budget is whole an hour later.
func seen(policy string, left int64, seq uint64, at time.Time) Budget {
	return Budget{name: budgetName{policy: policy}, Limit: 16, Left: left, seq: seq, received: at, Until: at.Add(time.Hour)}
}

func TestABudgetThatRefillsHasRoomAsItsUnitsComeBack(t *testing.T) {
	at := time.Unix(1000, 0)
	every, first := seen("w", 2, 1, at), seen("w", 2, 1, at)
	every.every = 10 * time.Second
	first.every, first.first = 10*time.Second, 3*time.Second
	for name, row := range map[string]struct {
		budget Budget
		n      int64
		want   time.Duration // the time since the answer
	}{
		"what is left":                             {every, 2, 0},
		"the next unit":                            {every, 3, 10 * time.Second},
		"three more":                               {every, 5, 30 * time.Second},
		"the next unit, at its own time":           {first, 3, 3 * time.Second},
		"two more after the next unit":             {first, 5, 23 * time.Second},
		"more than the whole budget":               {every, 17, time.Hour},
		"of a window, all come back at the end":    {seen("w", 2, 1, at), 3, time.Hour},
		"of a window, also what is left by then":   {seen("w", 2, 1, at), 2, time.Hour},
		"no later than the end of the whole of it": {Budget{Limit: 16, every: time.Hour, received: at, Until: at.Add(time.Hour)}, 9, time.Hour},
	} {
		assert.Equal(t, row.want, row.budget.fits(row.n).Sub(at), name)
	}
}

func TestPlentyIsLeftOfBudgetsThatRefillAndAreNearlyWhole(t *testing.T) {
	at := time.Unix(1000, 0)
	refills := func(left int64) Budget {
		b := seen("w", left, 1, at)
		b.every = time.Minute
		return b
	}
	tokens := seen("tokens", 0, 1, at)
	tokens.Units = true
	for name, row := range map[string]struct {
		list []Budget
		want bool
	}{
		"none":                     {nil, false},
		"whole":                    {[]Budget{refills(16)}, true},
		"all but an eighth":        {[]Budget{refills(14)}, true},
		"one less":                 {[]Budget{refills(13)}, false},
		"one of two is not":        {[]Budget{refills(16), refills(3)}, false},
		"tokens do not matter":     {[]Budget{tokens, refills(16)}, true},
		"a window does not refill": {[]Budget{seen("w", 16, 1, at)}, false},
		"a budget of few":          {[]Budget{{Limit: 4, Left: 4, every: time.Minute, received: at, Until: at.Add(time.Hour)}}, false},
	} {
		assert.Equal(t, row.want, (&budgets{list: row.list}).plenty(at), name)
	}
	assert.True(t, (&budgets{list: []Budget{refills(13)}}).plenty(at.Add(time.Minute)), "one has come back")
}

func TestOthersShareABudgetIfAnswersLeaveLessThanTheOwnRequestsExplain(t *testing.T) {
	at := time.Unix(1000, 0)
	later := func(policy string, left int64, seq uint64) Budget {
		return seen(policy, left, seq, at.Add(time.Second))
	}
	for name, row := range map[string]struct {
		anchor Budget
		answer Budget
		want   bool
	}{
		"the own request":                    {Budget{}, later("w", 9, 3), false},
		"two of others":                      {Budget{}, later("w", 7, 3), true},
		"another budget":                     {Budget{}, later("v", 0, 3), false},
		"an answer to an earlier request":    {Budget{}, later("w", 0, 2), false},
		"two of others since the anchor":     {seen("w", 14, 1, at.Add(-time.Second)), later("w", 9, 3), true},
		"an anchor of another budget":        {seen("v", 16, 1, at.Add(-time.Second)), later("w", 9, 3), false},
		"an anchor of a window that is over": {seen("w", 14, 1, at.Add(-2*time.Hour)), later("w", 9, 3), false},
	} {
		bs := &budgets{list: []Budget{seen("w", 10, 2, at)}, anchor: row.anchor}
		assert.Equal(t, row.want, bs.shared(row.answer), name)
	}
}

func TestARefusalForgetsBudgetsExceptOneThatRefills(t *testing.T) {
	at := time.Unix(1000, 0)
	refills, tokens, newer := seen("w", 3, 1, at), seen("tokens", 3, 1, at), seen("newer", 3, 9, at)
	refills.every, refills.Until = time.Minute, at.Add(time.Minute)
	tokens.every, tokens.Units = time.Minute, true
	refill := refills
	refill.seq, refill.Left, refill.received, refill.first, refill.Until = 5, 0, at.Add(time.Second), 9*time.Second, at.Add(time.Second+16*time.Minute)
	for name, row := range map[string]struct{ list, want []Budget }{
		"a window":                        {[]Budget{seen("w", 3, 1, at)}, nil},
		"tokens":                          {[]Budget{tokens}, nil},
		"one that refills":                {[]Budget{refills}, []Budget{refill}},
		"several, of which some are left": {[]Budget{refills, seen("v", 1, 1, at)}, nil},
		"one whose answer is that of a later request": {[]Budget{newer}, []Budget{newer}},
	} {
		bs := &budgets{list: row.list}
		bs.refused(5, at.Add(10*time.Second), at.Add(time.Second))
		assert.ElementsMatch(t, row.want, bs.list, name)
	}
}
