package redislimit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/tentative"
)

// A Wait's booking further than a second ahead is tentative: see package tentative. Its record is
// in a sorted set beside the key's state, and all processes' beats are in one key of the limiter.
// The booking is in the state as any other, so other versions of this package read it. The record
// is removed, and the booking given back, in one call. For places in a leaky bucket, see queue.go.

// tentatively are the scripts for tentative bookings.
var tentatively = newTentativeScripts(blocks{luaFiles})

type tentativeScripts struct{ decide, confirm, claim, look, back, closeUp, beat *script }

func newTentativeScripts(b blocks) *tentativeScripts {
	small := func(name string) *script { return newScript("", b.lua("clock", name)) }
	return &tentativeScripts{
		decide:  newScript("", b.lua("clock"), b.general("tentative")),
		confirm: small("tentative_confirm"),
		claim:   small("tentative_claim"),
		look:    small("tentative_look"),
		beat:    small("tentative_beat"),
		back: newScript("", b.lua("clock", "tentative_back_before"), b.lua(library...),
			"local reply = (function()\n"+b.lua("settle")+"end)()\n", b.lua("tentative_back_after")),
		closeUp: newScript("", b.lua("clock"), b.lua(library...), b.lua("tentative_queue")),
	}
}

// recordsKey returns the key of the records beside a key's state.
func recordsKey(key string) string {
	brace := strings.IndexByte(key, '{')
	separator := "@"
	if key[brace-1] == '#' {
		separator = "&"
	}
	return key[:brace-1] + separator + key[brace:]
}

// small runs a script about tentative bookings.
func (s *store) small(ctx context.Context, sc *script, key, payload string, deadline time.Time) (string, error) {
	return s.eval(ctx, &call{script: sc, keys: []string{key}, payload: []byte(payload), test: s.testWords(), deadline: deadline})
}

// pulse is where a limiter's processes show their life.
type pulse struct {
	store *store
	key   string
}

func (p pulse) run(payload string) ([]string, error) {
	reply, err := p.store.small(context.Background(), tentatively.beat, p.key, payload, time.Time{})
	return tentative.Chunks(reply, tentative.IDSize), err
}

func (p pulse) Beat(process string, left time.Duration) ([]string, error) {
	return p.run(string(put7([]byte("b"+process), max(0, inMicros(left)))))
}

func (p pulse) Silent() ([]string, error) { return p.run("s") }

func (p pulse) End(process string) error {
	_, err := p.run("e" + process)
	return err
}

// elapsed returns a reading of a clock of this process alone, in µs: a cluster's servers have several.
func (s *store) elapsed() int64 {
	if s.clock != nil {
		return s.clock()
	}
	return time.Since(begun).Microseconds() + 1
}

var begun = time.Now()

// frees reports whether a denied decision is to be made again: a key is booked ahead, and bookings of silent processes were given back.
func (r *request) frees(ctx context.Context, deadline time.Time) (any bool) {
	of := r.store.tentative
	if of == nil {
		return false
	}
	for i := range r.charges {
		c := &r.charges[i]
		last := c.newest
		if c.plan.kind == kindLeaky && of.Used() { // otherwise each full queue would cost calls, also where nobody waits
			last = c.state.At // the end of the queue
		}
		if c.allowed || c.shadow || c.cost == 0 || last-c.now <= inMicros(tentative.Near) {
			continue
		}
		key := r.keys[c.key]
		silent := of.Look(key, r.store.elapsed())
		if silent == nil {
			continue
		}
		freed, err := r.store.free(ctx, key, c.plan, deadline, silent)
		if any = any || freed; err != nil {
			of.Unlook(key)
		}
	}
	return any
}

// free gives the tentative bookings of silent processes back. It reports whether there were any.
func (s *store) free(ctx context.Context, key string, p *plan, deadline time.Time, silent []string) (any bool, err error) {
	records, err := s.records(ctx, key, deadline)
	if p.kind == kindLeaky {
		any, _, err = s.closeUp(ctx, key, records, deadline, silent)
		return any, err
	}
	for _, record := range records {
		process := record[:tentative.IDSize]
		if process == s.tentative.ID || record[recordKind] != p.kind || !slices.Contains(silent, process) {
			continue
		}
		was, failed := s.giveBack(ctx, key, p, record)
		any, err = any || was, errors.Join(err, failed)
	}
	return any, err
}

// records returns a key's records.
func (s *store) records(ctx context.Context, key string, deadline time.Time) ([]string, error) {
	reply, err := s.small(ctx, tentatively.look, recordsKey(key), "", deadline)
	if err != nil || len(reply)%tentativeSize != 0 {
		return nil, err
	}
	return tentative.Chunks(reply, tentativeSize), nil
}

// giveBack gives a tentative booking back, if its record is still there.
func (s *store) giveBack(ctx context.Context, key string, p *plan, record string) (was bool, err error) {
	item := settlement{plan: p, gen: get3(record[recordGen:]), changes: record[recordChanges],
		Spending: meter.Spending{At: get7(record[recordAt:]), Cost: get7(record[recordCost:])}}
	reply, err := s.corrected(ctx, tentatively.back, []string{key, recordsKey(key)}, item.pack(head([]byte(record), opSettle, 1), 0), func(b []byte, now int64) []byte {
		if b, now = p.putDates(b, s, now); p.latest() != p {
			b, _ = p.latest().putDates(b, s, now)
		}
		return b
	})
	return err == nil && reply != "" && reply[0] == answerAllowed, err
}

// find gives back an uncertain booking, if its record is there.
func (s *store) find(key string, p *plan, number string) error {
	records, err := s.records(context.Background(), key, time.Time{})
	for _, record := range records {
		if strings.HasPrefix(record, number) {
			_, failed := s.giveBack(context.Background(), key, p, record)
			err = errors.Join(err, failed)
		}
	}
	return err
}
