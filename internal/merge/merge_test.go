package merge

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTheSumIsThatOfTheAnswerThatBinds(t *testing.T) {
	allowed := func(limit string, remaining int, full time.Duration) Decision[string] {
		return Decision[string]{Allowed: true, Limit: limit, Remaining: remaining, ResetAfter: full}
	}
	denied := func(limit string, retry time.Duration) Decision[string] {
		return Decision[string]{Limit: limit, RetryAfter: retry, ResetAfter: retry}
	}
	for _, c := range []struct {
		name    string
		answers []Decision[string]
		want    Decision[string]
	}{
		{"none", nil, Decision[string]{Allowed: true, Limit: "unlimited", Remaining: math.MaxInt}},
		{"what leaves less", []Decision[string]{allowed("a", 5, 1), allowed("b", 3, 9), allowed("c", 4, 2)}, allowed("b", 3, 9)},
		{"of equals the longer reset", []Decision[string]{allowed("a", 5, 1), allowed("b", 5, 2)}, allowed("b", 5, 2)},
		{"of equals the first", []Decision[string]{allowed("a", 5, 1), allowed("b", 5, 1)}, allowed("a", 5, 1)},
		{"a denial", []Decision[string]{allowed("a", 0, 9), denied("b", 1)}, Decision[string]{Limit: "b", RetryAfter: 1, ResetAfter: 9}},
		{"the longest denial", []Decision[string]{denied("a", 2), denied("b", 3), denied("c", 1)}, denied("b", 3)},
		{"the largest debt", []Decision[string]{{Limit: "a", RetryAfter: 1, Debt: 9}, {Limit: "b", RetryAfter: 2, Debt: 4}}, Decision[string]{Limit: "b", RetryAfter: 2, Debt: 9}},
		{"what is degraded and delayed", []Decision[string]{{Allowed: true, Limit: "a", Remaining: 1, Delay: 4}, {Allowed: true, Limit: "b", Remaining: 2, Delay: 7, Degraded: true}},
			Decision[string]{Allowed: true, Limit: "a", Remaining: 1, Delay: 7, Degraded: true}},
	} {
		var d Decision[string]
		sum := Of(&d, "unlimited")
		assert.True(t, sum.Empty())
		for i := range c.answers {
			sum.Add(&c.answers[i], c.answers[i].Remaining)
			assert.False(t, sum.Empty())
		}
		assert.Equal(t, c.want, d, c.name)
	}
}

func TestRoomIsTheLargestCostOfTheCaller(t *testing.T) {
	assert.Equal(t, 10, Room(10, 0, 1))
	assert.Equal(t, 3, Room(10, 1, 3))
	assert.Equal(t, 0, Room(10, 11, 1))
	assert.Equal(t, math.MaxInt, Room(10, 10, 0), "the caller's cost is charged nowhere")
	assert.Equal(t, 0, Room(10, 11, 0), "but what is charged besides does not fit")
}
