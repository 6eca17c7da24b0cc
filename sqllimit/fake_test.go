package sqllimit

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeDB is a database in memory. It knows only this package's statements, and its driver fails where a test makes it fail.
type fakeDB struct {
	sql statements
	now func() int64 // its clock, in µs

	mu        sync.Mutex
	freed     *sync.Cond
	rows      map[string]row
	locked    map[string]*fakeConn
	writes    int // how many statements have changed something
	requested []string
	fail      func(step string) error // is called before a step; the steps are connect, begin, commit and the names of statements
	lose      func(step string) error // is called after a step: the step is done, but its answer is lost
}

func newFake(t testing.TB, now func() int64) (*fakeDB, *sql.DB) {
	db := OpenFake(now)
	f := db.Driver().(*fakeDB)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return f, db
}

// set changes the failing steps.
func (f *fakeDB) set(fail, lose func(step string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail, f.lose = fail, lose
}

// at returns a hook. It fails at one step.
func at(step string, err error) func(string) error {
	return func(s string) error {
		if s == step {
			return err
		}
		return nil
	}
}

// counted returns how many statements have changed something, and how many steps there were.
func (f *fakeDB) counted() (writes, steps int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes, len(f.requested)
}

// step runs a step between its two hooks.
func (f *fakeDB) step(name string, do func()) error {
	f.mu.Lock()
	fail, lose := f.fail, f.lose
	f.requested = append(f.requested, name)
	f.mu.Unlock()
	if fail != nil {
		if err := fail(name); err != nil {
			return err
		}
	}
	f.mu.Lock()
	do()
	f.mu.Unlock()
	if lose != nil {
		return lose(name)
	}
	return nil
}

func (f *fakeDB) Driver() driver.Driver { return f }

func (f *fakeDB) Open(string) (driver.Conn, error) { return f.Connect(context.Background()) }

func (f *fakeDB) Connect(context.Context) (driver.Conn, error) {
	return &fakeConn{f: f}, f.step("connect", func() {})
}

// fakeConn is a connection. In a transaction its writes are in pending until the commit.
type fakeConn struct {
	f       *fakeDB
	tx      bool
	pending []func()
	held    []string
}

func (c *fakeConn) Prepare(string) (driver.Stmt, error) {
	return nil, errors.New("fake: no statements")
}
func (c *fakeConn) Close() error              { return c.Rollback() }
func (c *fakeConn) Begin() (driver.Tx, error) { return nil, errors.New("fake: no context") }

func (c *fakeConn) BeginTx(_ context.Context, o driver.TxOptions) (driver.Tx, error) {
	if sql.IsolationLevel(o.Isolation) != sql.LevelReadCommitted {
		return nil, errors.New("fake: isolation")
	}
	c.tx = true
	return c, c.f.step("begin", func() {})
}

func (c *fakeConn) Commit() error {
	return c.f.step("commit", func() {
		for _, write := range c.pending {
			write()
		}
		c.release()
	})
}

func (c *fakeConn) Rollback() error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.release()
	return nil
}

func (c *fakeConn) release() {
	for _, key := range c.held {
		delete(c.f.locked, key)
	}
	c.tx, c.pending, c.held = false, nil, nil
	c.f.freed.Broadcast()
}

// lock waits until no other transaction has the row.
func (c *fakeConn) lock(key string) {
	for c.f.locked[key] != nil && c.f.locked[key] != c {
		c.f.freed.Wait()
	}
	if c.tx && c.f.locked[key] == nil {
		c.f.locked[key] = c
		c.held = append(c.held, key)
	}
}

// write makes a change, now or at the commit.
func (c *fakeConn) write(change func()) {
	f := c.f
	counted := func() { f.writes++; change() }
	if c.tx {
		c.pending = append(c.pending, counted)
	} else {
		counted()
	}
}

func (c *fakeConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	f := c.f
	text := func(i int) string { return string(args[i].Value.([]byte)) }
	r := new(fakeRows)
	var err error
	switch query {
	case f.sql.read:
		err = f.step("read", func() {
			if old, ok := f.rows[text(0)]; ok {
				r.add(f.now(), old.at, old.state, old.expires)
			} else {
				r.add(f.now(), nil, nil, nil)
			}
		})
	case f.sql.lock:
		err = f.step("lock", func() {
			if _, ok := f.rows[text(0)]; ok {
				c.lock(text(0))
			}
			if old, ok := f.rows[text(0)]; ok {
				r.add(f.now(), old.at, old.state, old.expires)
			}
		})
	case f.sql.due:
		err = f.step("due", func() {
			for _, key := range f.keys(text(1), text(2)) {
				if old := f.rows[key]; old.expires <= args[0].Value.(int64) && f.locked[key] == nil && len(r.all) < sweepRows {
					c.lock(key)
					r.add(f.now(), []byte(key), old.at, old.state)
				}
			}
		})
	case f.sql.page:
		err = f.step("page", func() {
			for _, key := range f.keys(text(0), text(1)) {
				if len(r.all) < pageRows {
					r.add(f.now(), []byte(key), f.rows[key].at, f.rows[key].state)
				}
			}
		})
	default:
		return nil, errors.New("fake: " + query)
	}
	if err == nil {
		err = ctx.Err()
	}
	return r, err
}

func (f *fakeDB) keys(from, end string) (keys []string) {
	for key := range f.rows {
		if key >= from && key < end {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func (c *fakeConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	f := c.f
	text := func(i int) string { return string(args[i].Value.([]byte)) }
	number := func(i int) int64 { return args[i].Value.(int64) }
	var n int64
	var err error
	switch {
	case query == f.sql.insert:
		err = f.step("insert", func() {
			key, next := text(0), row{at: number(1), state: bytes.Clone(args[2].Value.([]byte)), expires: number(3)}
			if c.lock(key); !f.has(key) {
				n = 1
				c.write(func() { f.rows[key] = next })
			}
		})
	case query == f.sql.update:
		err = f.step("update", func() {
			key, next := text(3), row{at: number(0), state: bytes.Clone(args[1].Value.([]byte)), expires: number(2)}
			c.lock(key)
			if old := f.rows[key]; f.has(key) && old.at == number(4) && bytes.Equal(old.state, args[5].Value.([]byte)) {
				n = 1
				c.write(func() { f.rows[key] = next })
			}
		})
	case query == f.sql.both:
		err = f.step("both", func() {
			key, next := text(3), row{at: number(0), state: bytes.Clone(args[1].Value.([]byte)), expires: number(2)}
			other, inserted := text(6), row{at: number(7), state: bytes.Clone(args[8].Value.([]byte)), expires: number(9)}
			c.lock(key)
			if old := f.rows[key]; f.has(key) && old.at == number(4) && bytes.Equal(old.state, args[5].Value.([]byte)) {
				n = 1
				c.write(func() { f.rows[key], f.rows[other] = next, inserted })
			}
		})
	case query == f.sql.reset:
		err = f.step("reset", func() {
			key, next := text(0), row{at: f.now(), state: bytes.Clone(args[1].Value.([]byte)), expires: f.now() + number(2)}
			c.lock(key)
			c.write(func() { f.rows[key] = next })
		})
	case query == f.sql.postpone:
		err = f.step("postpone", func() {
			key, expires := text(1), number(0)
			c.write(func() { r := f.rows[key]; r.expires = expires; f.rows[key] = r })
		})
	case strings.HasPrefix(query, f.sql.remove):
		err = f.step("remove", func() {
			for i := range args {
				key := text(i)
				if f.has(key) {
					n++
				}
				c.write(func() { delete(f.rows, key) })
			}
		})
	default:
		return nil, errors.New("fake: " + query)
	}
	if err == nil {
		err = ctx.Err()
	}
	return driver.RowsAffected(n), err
}

func (f *fakeDB) has(key string) bool { _, ok := f.rows[key]; return ok }

type fakeRows struct{ all [][]driver.Value }

func (r *fakeRows) add(values ...driver.Value) { r.all = append(r.all, values) }
func (r *fakeRows) Columns() []string {
	if len(r.all) == 0 {
		return nil
	}
	return make([]string, len(r.all[0]))
}
func (r *fakeRows) Close() error { return nil }
func (r *fakeRows) Next(dest []driver.Value) error {
	if len(r.all) == 0 {
		return io.EOF
	}
	copy(dest, r.all[0])
	r.all = r.all[1:]
	return nil
}

// fakeClock stands still until a test moves it.
type fakeClock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *fakeClock { return &fakeClock{at: time.Date(2027, 1, 30, 12, 0, 0, 0, time.UTC)} }

func (c *fakeClock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at.UnixMicro()
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}
