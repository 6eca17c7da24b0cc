package meter

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// even is a calendar of equal windows. A limit on it can be compared with algorithms that need no calendar.
type even int64

func (e even) At(instant int64) Window {
	i := instant / int64(e)
	if instant%int64(e) < 0 {
		i--
	}
	return e.nth(i)
}

func (e even) nth(i int64) Window { return Window{i * int64(e), (i + 1) * int64(e), i + 1<<40} }

func (e even) After(ordinal, k int64) Window { return e.nth(ordinal - 1<<40 + k) }

func (e even) Count(first, second int64) int64 { return second - first }

// shifted is a calendar whose wall clock was set.
type shifted struct {
	even
	by int64
}

func (s *shifted) At(instant int64) Window { return s.back(s.even.At(instant + s.by)) }

func (s *shifted) After(ordinal, k int64) Window { return s.back(s.even.After(ordinal, k)) }

func (s *shifted) back(w Window) Window { return Window{w.From - s.by, w.To - s.by, w.Ordinal} }

func TestACalendarWindowIsGrantedOnceWhateverTheWallClockDoes(t *testing.T) {
	wall := &shifted{even: even(100)}
	m := New(Limit{Kind: Calendar, Units: 10, Per: 100, Windows: wall, Horizon: 1 << 40, Most: 1 << 40})
	s := State{At: 90}
	assert.True(t, m.Allow(&s, 90, 10))
	assert.False(t, m.Allow(&s, 99, 1))
	assert.True(t, m.Allow(&s, 100, 4), "the next window")
	wall.by = -50
	assert.True(t, m.Allow(&s, 101, 5), "set back: it goes on")
	assert.False(t, m.Allow(&s, 110, 2))
	assert.EqualValues(t, 250, m.Regained(s))
	assert.False(t, m.Allow(&s, 249, 2))
	assert.True(t, m.Allow(&s, 250, 10))
	wall.by = 200
	assert.True(t, m.Allow(&s, 251, 10), "set forward")
}

// The wall clock is set forward, so a spending now seems to belong to the next window. A
// refund after the end of its own window still does not raise the next window's budget.
func TestSpendingFromBeforeTheWallClockWasSetIsNotOfTheNewWindow(t *testing.T) {
	wall := &shifted{even: even(100)}
	m := New(Limit{Kind: Calendar, Units: 10, Per: 100, Windows: wall, Horizon: 1 << 40, Most: 1 << 40})
	s := State{At: 90}
	o := m.Take(&s, Moment{90, 90}, 10, 0, Booked)
	wall.by = 20
	assert.True(t, m.Allow(&s, 91, 10))
	m.Settle(&s, 92, o.Spending(10), 0)
	assert.False(t, m.Allow(&s, 92, 1))
}
