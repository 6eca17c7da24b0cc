// Package audit writes denials to a database, in the table rate_limit_violation of sqlsource.Migration.
//
//	log, err := audit.New(db, nil)
//	policies, err := policy.New(set, &policy.Options{OnDecision: log.OnDecision, ReuseRules: true})
//	…
//	err = log.Close(ctx) // writes waiting rows
//
// Each rule, key and minute has one row, with a count. Decisions never wait for the database.
package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/wait"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/match"
	"github.com/weir-go/ratelimit/policy/internal/poll"
	"github.com/weir-go/ratelimit/policy/internal/sqltext"
	"github.com/weir-go/ratelimit/sqllimit"
	"github.com/weir-go/ratelimit/stats"
)

// Options configure [New]. Nil and the zero Options select the defaults.
type Options struct {
	// Dialect is the database's dialect: one of package sqllimit, or sqlsource.SQLite. It defaults to PostgreSQL.
	Dialect sqllimit.Dialect
	// Every is the time between two writes. It defaults to 1 s.
	Every time.Duration
	// MaxPending bounds how many rows wait. Further rows are dropped and counted. It defaults to 10,000.
	MaxPending int
	// Timeout bounds each query and each attempt to write. It defaults to 5 s.
	Timeout time.Duration
	// HashKey replaces keys, users, addresses and paths by the first 32 hex
	// digits of their HMAC-SHA256. If empty, they are stored as they are.
	HashKey []byte
	// MaxRows is the maximum number of rows that this process writes for one rule
	// and minute. Further keys share one row without a key. It defaults to 1,000.
	MaxRows int
	// Keep is how long rows are kept. It defaults to 30 days; if negative, rows are never deleted.
	Keep time.Duration
	// Shadows also writes shadow rules' denials. In the table, "shadow:" precedes these rules' names.
	Shadows bool
	// Logger logs write errors, at most one a second. It defaults to slog.Default().
	Logger *slog.Logger
}

// Stats are a [Log]'s counters.
type Stats struct {
	Denials   uint64 // denials recorded, one for each rule that denied
	Written   uint64 // denials written
	Dropped   uint64 // denials dropped, because the queue was full or the database refused a row
	Pending   int    // rows not written yet
	LastError error  // the last write's error, or nil if it succeeded
}

// Log writes denials to a database. Make one with [New]. It is safe for concurrent use.
type Log struct {
	db   *sql.DB
	opts Options
	stop context.CancelFunc
	done chan struct{}

	writing chan struct{} // has a buffer for one element, put there by the goroutine that writes
	taken   uint64        // how many rows the database has accepted; guarded by writing
	blamed  error         // why the last refused row was dropped; guarded by writing

	mu       sync.Mutex // guards the fields below; never held during I/O
	pending  map[violationKey]*violation
	finished uint64 // how many rows Flush has written or dropped
	inFlight int    // how many rows are being written; with pending, at most MaxPending
	stats    Stats
	logged   time.Time
	closed   bool
	minute   int64                        // the minute of the keys in rows
	rows     map[string]map[string]string // by rule, the keys with their own row in this minute, each mapped to itself
	keys     int                          // the number of keys in rows, over all rules
}

// violationKey identifies a row in the table.
type violationKey struct {
	rule, key string
	minute    int64 // the minute's beginning, in Unix time
}

// violation is a row waiting to be written.
type violation struct {
	Violation
	minute    int64  // the minute's beginning, in Unix time
	done      bool   // whether it was written or dropped
	refusedAt uint64 // 1 plus the number of rows accepted before the database refused this one; 0 if it did not refuse it
}

func (v *violation) id() violationKey { return violationKey{v.Rule, v.Key, v.minute} }

// New returns a log, and starts a goroutine that writes denials to db. [Log.Close] ends it.
func New(db *sql.DB, opts *Options) (*Log, error) {
	a := &Log{db: db, pending: map[violationKey]*violation{}, writing: make(chan struct{}, 1), done: make(chan struct{})}
	if opts != nil {
		a.opts = *opts
	}
	if db == nil {
		return nil, optional.Nil("policy/audit: New: db")
	}
	if err := a.opts.complete(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	go func() {
		defer close(a.done)
		swept := time.Time{}
		poll.Every(ctx, a.opts.Every, func() {
			_ = a.Flush(ctx)
			if time.Since(swept) >= time.Hour {
				swept = time.Now()
				if err := a.sweep(ctx); err != nil && ctx.Err() == nil {
					a.opts.Logger.Warn("policy: old denials could not be deleted", slog.Any("error", err))
				}
			}
		})
	}()
	return a, nil
}

func (o *Options) complete() error {
	err := cmp.Or(
		sqltext.Check("policy/audit: Options.Dialect", uint8(o.Dialect)),
		optional.NotNegative("policy/audit: Options.MaxPending", o.MaxPending, "the default"),
		optional.NotNegative("policy/audit: Options.MaxRows", o.MaxRows, "the default"),
		optional.NotNegative("policy/audit: Options.Every", o.Every, "the default"),
		optional.NotNegative("policy/audit: Options.Timeout", o.Timeout, "the default"),
	)
	if err != nil {
		return err
	}
	o.MaxPending, o.MaxRows = cmp.Or(o.MaxPending, 10_000), cmp.Or(o.MaxRows, 1000)
	o.Keep, o.Every, o.Timeout = cmp.Or(o.Keep, 30*24*time.Hour), cmp.Or(o.Every, time.Second), cmp.Or(o.Timeout, 5*time.Second)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return nil
}

func (a *Log) mustBeMade() {
	if a == nil || a.done == nil {
		panic(optional.Zero("policy/audit", "Log", "New"))
	}
}

// OnDecision records denials, also after a Wait has given up. Pass it as
// [policy.Options.OnDecision]. It does not keep the decision's Rules, so ReuseRules may be set.
func (a *Log) OnDecision(d policy.Decision) {
	a.mustBeMade()
	whole := outcome.Of(d.Decision, d.Err).Denies()
	for i := range d.Rules {
		switch r := &d.Rules[i]; {
		case r.Shadow:
			if a.opts.Shadows && r.Answered && !r.Decision.Allowed {
				a.add(a.ofRule(d, r))
			}
		case whole && denied(d, r):
			a.add(a.ofRule(d, r))
		}
	}
}

// Of returns a function that records denials for a limiter without rules. Pass it as [ratelimit.Options.OnDecision], or
// as another engine's option of the same name. The limiter's name takes the place of a rule's. key returns a key's text.
func Of[K any](a *Log, limiter string, key func(K) string) func(ratelimit.Event[K]) {
	a.mustBeMade()
	if key == nil {
		panic(optional.Nil("policy/audit: Of: key"))
	}
	return func(e ratelimit.Event[K]) {
		if outcome.Of(e.Decision, e.Err).Denies() {
			a.add(a.violation(clean(limiter), key(e.Key), e.Cost, e.Decision))
		}
	}
}

// denied reports whether a rule denied the request. If the engine does not report
// the rule's own decision, the rule denied if its limit's name is the decision's.
func denied(d policy.Decision, r *stats.RuleDecision) bool {
	if r.Answered {
		return !r.Decision.Allowed
	}
	return d.Decision.Limit.Name == r.Rule
}

// shadowPrefix precedes a shadow rule's name. No rule's name contains a colon.
const shadowPrefix = "shadow:"

// ofRule returns the row for a rule's denial.
func (a *Log) ofRule(d policy.Decision, r *stats.RuleDecision) *violation {
	answer := r.Decision
	if !r.Answered {
		answer = d.Decision
	}
	answer.Degraded = d.Decision.Degraded
	rule := r.Rule
	if r.Shadow {
		rule = shadowPrefix + rule
	}
	v := a.violation(rule, r.Key, r.Cost, answer)
	v.User = a.private(attribute(d.Request, "user"))
	v.Route = a.routeOf(d.Request)
	v.IP = a.private(match.Client(attribute(d.Request, "ip")))
	return v
}

// violation returns a denial's row, without its time.
func (a *Log) violation(rule, key string, cost int, d ratelimit.Decision) *violation {
	return &violation{Violation: Violation{
		Denials: policy.Denials{Rule: rule, Key: a.private(key), Count: 1},
		Cost:    cost, Remaining: d.Remaining, RetryAfter: d.RetryAfter, Degraded: d.Degraded,
	}}
}

func attribute(r policy.Request, name string) string {
	v, _ := r.Attribute(name)
	return v
}

// routeOf returns a request's route as it is stored: the pattern
// or, without one, the method and path. The path may contain a key.
func (a *Log) routeOf(r policy.Request) string {
	if route := attribute(r, "route"); route != "" {
		return clean(route)
	}
	return strings.TrimSpace(clean(attribute(r, "method")) + " " + a.private(attribute(r, "path")))
}

// private returns a possibly private text as it is stored.
func (a *Log) private(text string) string {
	if len(a.opts.HashKey) == 0 || text == "" {
		return clean(text)
	}
	return joined.Hash(a.opts.HashKey, text)
}

// maxStored is the maximum length of a stored text, in bytes. A hash replaces a longer text.
const maxStored = 200

// clean returns a text in a form that each database accepts: short, valid UTF-8, without NUL.
func clean(text string) string {
	if len(text) > maxStored {
		sum := sha256.Sum256([]byte(text))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// add adds a violation to its row's count, or drops it if too many rows
// wait. It reads the time under the lock, so that minutes are in order.
func (a *Log) add(v *violation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	v.FirstAt, v.LastAt, v.minute = now, now, now.Truncate(time.Minute).Unix()
	a.stats.Denials++
	if !a.hasRowLocked(v) {
		v.Key, v.User, v.Route, v.IP = "", "", "", ""
	}
	var before Violation
	if row := a.pending[v.id()]; row != nil {
		before = row.Violation
	}
	v.User, v.Route, v.IP = owned(v.User, before.User), owned(v.Route, before.Route), owned(v.IP, before.IP)
	a.mergeLocked(v)
}

// owned returns before if it equals text, and otherwise a copy of text. A text
// may be a part of a request's header, and would keep the whole header in memory.
func owned(text, before string) string {
	if text == before {
		return before
	}
	return strings.Clone(text)
}

// hasRowLocked reports whether a violation's key may have its own row
// in its minute. If so, it replaces the violation's key by a copy.
func (a *Log) hasRowLocked(v *violation) bool {
	if v.minute != a.minute {
		a.minute, a.rows, a.keys = v.minute, map[string]map[string]string{}, 0
	}
	keys := a.rows[v.Rule]
	if key, ok := keys[v.Key]; ok {
		v.Key = key
		return true
	}
	if len(keys) >= a.opts.MaxRows || a.keys >= mostKeys {
		return false
	}
	if keys == nil {
		keys = map[string]string{}
		a.rows[v.Rule] = keys
	}
	v.Key = strings.Clone(v.Key)
	keys[v.Key] = v.Key
	a.keys++
	return true
}

// mostKeys is the maximum number of keys with their own row in one minute. It bounds the memory for them.
const mostKeys = 100_000

func (a *Log) mergeLocked(v *violation) {
	switch row := a.pending[v.id()]; {
	case row != nil:
		row.merge(v)
	case len(a.pending)+a.inFlight >= a.opts.MaxPending || a.closed:
		a.stats.Dropped += uint64(v.Count)
	default:
		a.pending[v.id()] = v
	}
}

// merge adds the count of another row with the same key. Either row may be the later one.
func (v *violation) merge(w *violation) {
	first, count, refusedAt := v.FirstAt, v.Count, max(v.refusedAt, w.refusedAt)
	if w.FirstAt.Before(first) {
		first = w.FirstAt
	}
	if !w.LastAt.Before(v.LastAt) {
		*v = *w
	}
	v.FirstAt, v.Count, v.refusedAt = first, count+w.Count, refusedAt
}

// Stats returns the log's counters.
func (a *Log) Stats() Stats {
	a.mustBeMade()
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.stats
	s.Pending = len(a.pending) + a.inFlight
	return s
}

// Close writes the waiting rows, and ends the log's goroutine. It gives up after an attempt that writes
// nothing. Then it returns the reason why the remaining rows are lost. Later denials are dropped.
func (a *Log) Close(ctx context.Context) error {
	a.mustBeMade()
	ctx = wait.OrBackground(ctx)
	a.stop()
	<-a.done
	var err error
	for {
		before := a.progress()
		err = a.Flush(ctx)
		if err == nil || ctx.Err() != nil || a.progress() == before {
			break
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, v := range a.pending {
		a.stats.Dropped += uint64(v.Count)
	}
	clear(a.pending)
	return err
}

func (a *Log) progress() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.finished
}
