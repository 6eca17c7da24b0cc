package meter

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestADebtIsTheSpendingAboveTheCapacity(t *testing.T) {
	for _, kind := range kinds {
		m := meterOf(kind, 10, second, 10)
		s := State{At: 1}
		m.Adjust(&s, 1, 4)
		assert.Zero(t, m.Debt(s, 1), kind)
		m.Adjust(&s, 1, 13)
		assert.EqualValues(t, 7, m.Debt(s, 1), kind)
		m.Adjust(&s, 1, -5)
		assert.EqualValues(t, 2, m.Debt(s, 1), kind)
		m.Adjust(&s, 1, -2)
		assert.Zero(t, m.Debt(s, 1), "%v: the budget is used up, and no more", kind)
		m.Adjust(&s, 1, 25)
		assert.EqualValues(t, 25, m.Debt(s, 1), kind)
		assert.Zero(t, m.Debt(s, 1+10*second), "%v: all is regained", kind)
	}
}

func TestTheDebtOfABucketIsRoundedUp(t *testing.T) {
	m := meterOf(TokenBucket, 10, second, 10)
	s := State{}
	m.Adjust(&s, 0, 13)
	assert.EqualValues(t, 3, m.Debt(s, second/10-1))
	m.Advance(&s, second/10+1)
	assert.EqualValues(t, 2, m.Debt(s, second/10+1), "of 1.99…")
}

// By definition, the debt is the spending, bookings included, less the capacity.
func TestRemainingAndDebtAreTheTwoSidesOfOneBalance(t *testing.T) {
	for _, kind := range kinds {
		for seed := range uint64(40) {
			rng := rand.New(rand.NewPCG(seed, 1))
			capacity := 1 + rng.Int64N(9)
			m := meterOf(kind, 1+rng.Int64N(9), 1+rng.Int64N(9000), capacity)
			capacity = m.capacity()
			s, now := State{}, int64(0)
			for i := range 200 {
				now += rng.Int64N(4000)
				switch rng.IntN(4) {
				case 0:
					m.Adjust(&s, now, rng.Int64N(4*capacity)-2*capacity)
				default:
					m.Take(&s, Moment{now, now}, 1+rng.Int64N(capacity), rng.Int64N(9000), Booked)
				}
				m.Refresh(&s)
				at := now + rng.Int64N(6000)
				remaining, debt, regained := m.Standing(s, at)
				spent := m.spent(s, at)
				why := fmt.Sprintf("kind %v seed %d step %d", kind, seed, i)
				assert.Equal(t, max(0, spent-capacity), debt, why)
				assert.Equal(t, m.Debt(s, at), debt, why)
				assert.Equal(t, m.Remaining(s, at), remaining, why)
				assert.False(t, debt > 0 && (remaining > 0 || regained <= at), why)
				if remaining > 0 {
					assert.Equal(t, capacity-spent, remaining, why)
				}
				if t.Failed() {
					return
				}
			}
		}
	}
}
