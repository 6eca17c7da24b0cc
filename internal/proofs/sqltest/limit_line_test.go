package sqltest

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/sqllimit"
)

// reached is a database that other processes can open, too.
type reached struct{ driver, dsn string }

func (r reached) dialect() sqllimit.Dialect {
	if r.driver == "mysql" {
		return sqllimit.MySQL
	}
	return sqllimit.PostgreSQL
}

// reachable returns a database of each server, with the table in it.
func reachable(t *testing.T) map[string]reached {
	t.Helper()
	maria := openMariaDB(t)
	var name string
	require.NoError(t, maria.QueryRow("SELECT DATABASE()").Scan(&name))
	all := map[string]reached{
		"postgresql": {"pgx", startPostgres(t).name("postgres")},
		"mariadb":    {"mysql", mariaDB(t).dsn(name)},
	}
	for _, r := range all {
		db, err := r.open()
		require.NoError(t, err)
		_, err = db.Exec(sqllimit.Schema(r.dialect(), ""))
		require.NoError(t, err)
		require.NoError(t, db.Close())
	}
	return all
}

// open opens the database as a process of a fleet does: all callers share a few connections.
func (r reached) open() (*sql.DB, error) {
	db, err := sql.Open(r.driver, r.dsn)
	if err == nil {
		db.SetMaxOpenConns(8)
		db.SetMaxIdleConns(8)
	}
	return db, err
}

func (r reached) limiter(t *testing.T, limit ratelimit.Limit, name string) *sqllimit.Limiter {
	t.Helper()
	db, err := r.open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	l := limiterOn(t, db, limit, sqllimit.Options{Name: name, Dialect: r.dialect()})
	require.True(t, l.Allow("connect", 1))
	return l
}

const (
	killedProcesses = 3
	killedCallers   = 10 // in each process
	killedName      = "killed"
)

// killedLimit is the fleet's limit: about 13 calls a second, with costs of up to 8.
var killedLimit = ratelimit.TokenBucket(ratelimit.PerSecond(60), 10)

// turnOf is one served call of a process.
type turnOf struct{ process, caller, cost int }

// Processes of a fleet are killed while their callers wait. They do not bar the other processes'
// callers: all of these are served repeatedly, and the real costs stay within the bound.
func TestAFleetOnADatabaseServesItsWaitersThoughProcessesAreKilled(t *testing.T) {
	if dsn := os.Getenv("SQLLIMIT_KILLED"); dsn != "" {
		waitInFleet(reached{os.Getenv("SQLLIMIT_DRIVER"), dsn})
		return
	}
	if testing.Short() {
		t.Skip("it starts processes")
	}
	testsize.Extra(t)
	testsize.Alone(t)
	for server, r := range reachable(t) {
		t.Run(server, func(t *testing.T) { killInFleet(t, r) })
	}
}

func killInFleet(t *testing.T, r reached) {
	probe := r.limiter(t, killedLimit, killedName)
	begin := time.Now()
	events := make(chan turnOf, 1<<12)
	var all []*exec.Cmd
	for i := range killedProcesses {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAFleetOnADatabaseServesItsWaitersThoughProcessesAreKilled$")
		c.Env = append(os.Environ(), "SQLLIMIT_KILLED="+r.dsn, "SQLLIMIT_DRIVER="+r.driver)
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				e := turnOf{process: i}
				if n, _ := fmt.Sscanf(lines.Text(), "served %d %d", &e.caller, &e.cost); n == 2 {
					events <- e
				}
			}
		}()
		all = append(all, c)
	}
	used := 0
	// everyone waits until each caller has been served the given number of times, in the processes from the given number on.
	everyone := func(from, times int) {
		t.Helper()
		counts, missing := map[turnOf]int{}, (killedProcesses-from)*killedCallers
		for late := time.After(time.Minute); missing > 0; {
			select {
			case e := <-events:
				used += e.cost
				e.cost = 0
				if counts[e]++; e.process >= from && counts[e] == times {
					missing--
				}
			case <-late:
				require.Failf(t, "callers starve", "%d of those behind process %d", missing, from)
			}
		}
	}
	everyone(0, 1)
	for killed := range killedProcesses - 1 {
		require.NoError(t, all[killed].Process.Kill()) // as with kill -9
		_ = all[killed].Wait()
		d, err := probe.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.LessOrEqual(t, d.RetryAfter, time.Second+50*time.Millisecond, "%d processes are dead", killed+1)
		everyone(killed+1, 2)
	}
	took := time.Since(begin)
	require.NoError(t, all[killedProcesses-1].Process.Kill())
	_ = all[killedProcesses-1].Wait()
	most := float64(killedLimit.Burst) + took.Seconds()*float64(killedLimit.Rate.Units)
	t.Logf("%d units, %.1f %% of the bound, in %v", used, 100*float64(used)/most, took)
	assert.LessOrEqual(t, float64(used), most)
}

// waitInFleet runs one process of the fleet. Each caller repeatedly
// waits with an estimate, and then gives back the unused units.
func waitInFleet(r reached) {
	db, err := r.open()
	if err != nil {
		panic(err)
	}
	l, err := sqllimit.New(db, killedLimit, &sqllimit.Options{Name: killedName, Dialect: r.dialect(), Timeout: time.Minute})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	for caller := range killedCallers {
		go func() {
			for {
				estimate := 1 + rand.IntN(8)
				if err := l.Wait(ctx, "k", estimate); err != nil {
					panic(err)
				}
				cost := 1 + rand.IntN(estimate)
				if err := l.Adjust(ctx, "k", cost-estimate); err != nil {
					panic(err)
				}
				fmt.Printf("served %d %d\n", caller, cost)
			}
		}()
	}
	select {}
}

// At the old rate, the last caller would be served after five minutes.
func TestARaiseOnADatabaseServesThoseWhoWait(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds of real time")
	}
	testsize.Extra(t)
	testsize.Alone(t)
	for server, r := range reachable(t) {
		t.Run(server, func(t *testing.T) {
			l := r.limiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), "raised")
			require.True(t, l.Allow("k", 1))
			ctx, cancel := context.WithCancel(t.Context())
			defer time.AfterFunc(time.Minute, cancel).Stop()
			var callers sync.WaitGroup
			for range 300 {
				callers.Go(func() { assert.NoError(t, l.Wait(ctx, "k", 1)) })
			}
			require.Eventually(t, func() bool {
				d, err := l.Peek(ctx, "k", 1)
				return err == nil && d.RetryAfter > 4*time.Minute
			}, time.Minute, 10*time.Millisecond, "they do not wait")
			begin := time.Now()
			require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(100), 1)))
			callers.Wait()
			t.Logf("the last one was served after %v", time.Since(begin))
		})
	}
}

// Callers of a stack wait in the line of the key that denies them. Each served caller needs
// only a few statements, all callers are served, and an exhausted user delays no other user.
func TestWaitingCallersOfAStackOnADatabaseAreNoHerd(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds of real time")
	}
	testsize.Extra(t)
	testsize.Alone(t)
	callers, rate := testsize.Of(600, 2000), testsize.Of(200, 500)
	server := startPostgres(t)
	budgetTable(t, server.open(t))
	var sent atomic.Int64
	db := sql.OpenDB(&clocked{server.name("postgres"), time.Now, func(string) error {
		sent.Add(1)
		return nil
	}})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	total := limiterOn(t, db, ratelimit.TokenBucket(ratelimit.PerSecond(rate), 20), sqllimit.Options{Name: "total"})
	user := limiterOn(t, db, ratelimit.TokenBucket(ratelimit.PerDay(1000), 1000), sqllimit.Options{Name: "user"})
	require.True(t, user.Allow("exhausted", 1000))
	stack, err := ratelimit.All(ratelimit.By(user, func(u string) (string, error) { return u, nil }), ratelimit.Global[string](total))
	require.NoError(t, err)
	exhausted, leave := context.WithCancel(t.Context())
	defer leave()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	defer time.AfterFunc(time.Minute, end).Stop()
	var served, barred sync.WaitGroup
	for range 50 {
		barred.Go(func() { assert.ErrorIs(t, stack.Wait(exhausted, "exhausted", 1), context.Canceled) })
	}
	before, begin := sent.Load(), time.Now()
	for i := range callers {
		served.Go(func() { assert.NoError(t, stack.Wait(ctx, fmt.Sprint("user", i%7), 1)) })
	}
	served.Go(func() { assert.NoError(t, stack.Wait(ctx, "large", 15)) })
	served.Wait()
	statements, took := float64(sent.Load()-before)/float64(callers), time.Since(begin)
	leave()
	barred.Wait()
	ideal := time.Duration(callers+15-20) * time.Second / time.Duration(rate)
	t.Logf("%.1f statements for each caller, %v, %.1f %% of the rate", statements, took, 100*float64(ideal)/float64(took))
	assert.Less(t, statements, 20.0)
}
