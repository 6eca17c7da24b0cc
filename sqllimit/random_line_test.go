package sqllimit

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/linetest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// fakeStore is a database in memory. A decision takes two statements, and up to six if another process was first.
var fakeStore = linetest.Bubble{Calls: 6, Open: func(t *testing.T, takes time.Duration) func(ratelimit.Limit) linetest.Process {
	f, _ := newFake(t, func() int64 { return time.Now().UnixMicro() })
	f.set(nil, func(string) error {
		time.Sleep(takes)
		return nil
	})
	return func(limit ratelimit.Limit) linetest.Process {
		db := sql.OpenDB(f)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return newLimiter(t, db, limit, patient)
	}
}}

func TestRandomLinesInADatabaseAreServedAsInMemory(t *testing.T) {
	testsize.Sequential(t)
	fakeStore.Random(t, 10)
}

func TestCallersInLineAreChargedAgainAfterAnotherProcessHasResetTheirKey(t *testing.T) {
	fakeStore.Reset(t)
}

// Each minute an operator raises, lowers, blocks or lifts the limit,
// or grants or resets, while the reservations of three processes wait.
func TestAnHourOfReservationsThatWaitUsesTheLimitOfADatabase(t *testing.T) {
	testsize.Arithmetic(t)
	fakeStore.Hour(t, 60, .95)
}

func TestAProcessThatDiesBarsNobodyLongerThanASecond(t *testing.T) {
	fakeStore.Dies(t, func(p linetest.Process) { require.NoError(t, p.(*Limiter).store.db.Close()) })
}
