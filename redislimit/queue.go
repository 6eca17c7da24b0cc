package redislimit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/tentative"
)

// A place in a leaky bucket's queue has others behind it. If its process dies, a script gives it back, and moves the places
// behind it up, as far as these are tentative, too. So a place may move, up to half a second before its new instant. Its
// process learns the new instant when its next beat reports the silent process, and at the latest when it claims the place.

// place is a tentative place of this process.
type place struct {
	store  *store
	key    string // in Redis
	plan   *plan
	number string
	moved  func(by time.Duration) // called when the place has moved up

	mu     sync.Mutex
	record string
}

// closeUp gives back silent processes' places with records, and moves the places
// behind them up. It reports whether there were any, and returns the present records.
func (s *store) closeUp(ctx context.Context, key string, records []string, deadline time.Time, silent []string) (any bool, now []string, err error) {
	if !slices.ContainsFunc(records, func(record string) bool {
		process := record[:tentative.IDSize]
		return process != s.tentative.ID && slices.Contains(silent, process)
	}) {
		return false, records, nil
	}
	payload := head(nil, 0, 0)
	for _, process := range silent {
		if process != s.tentative.ID {
			payload = append(payload, process...)
		}
	}
	c := &call{script: tentatively.closeUp, keys: []string{key, recordsKey(key)}, payload: payload, test: s.testWords(), deadline: deadline}
	reply, err := s.eval(ctx, c)
	if err != nil || reply == "" {
		return false, nil, err
	}
	return reply[0] == 1, tentative.Chunks(reply[1:], tentativeSize), nil
}

// follow learns where the place is now, and has it move up if silent processes had places before it.
func (p *place) follow(silent []string) {
	records, err := p.store.records(context.Background(), p.key, time.Time{})
	if err == nil {
		_, records, err = p.store.closeUp(context.Background(), p.key, records, time.Time{}, silent)
	}
	if err != nil {
		return
	}
	for _, record := range records {
		if strings.HasPrefix(record, p.number) {
			p.movedTo(record)
		}
	}
}

// movedTo records where the place stands now. It only moves up.
func (p *place) movedTo(record string) {
	p.mu.Lock()
	by := get7(p.record[recordAt:]) - get7(record[recordAt:])
	if by > 0 {
		p.record = record
	}
	p.mu.Unlock()
	if by > 0 {
		p.moved(time.Duration(by) * time.Microsecond)
	}
}

// confirm claims the place. It fails if the place was given back, or if its instant has passed: others have left the queue since.
func (p *place) confirm() (bool, error) {
	reply, err := p.store.small(context.Background(), tentatively.claim, recordsKey(p.key), p.number, time.Time{})
	if err != nil || len(reply) != tentativeSize {
		return false, err
	}
	p.movedTo(reply)
	return true, nil
}

// cancel gives the place back, if it is the last of the queue. Otherwise nobody takes it.
func (p *place) cancel() error { return p.store.find(p.key, p.plan, p.number) }

// settle settles the cost of a claimed place.
func (p *place) settle(actual int) error {
	p.mu.Lock()
	record := p.record
	p.mu.Unlock()
	item := settlement{plan: p.plan, gen: get3(record[recordGen:]), changes: record[recordChanges], shares: 1,
		Spending: meter.Spending{At: get7(record[recordAt:]), Cost: get7(record[recordCost:])}}
	_, err := p.store.settle([]string{p.key}, []settlement{item}, int64(actual), nil)
	return err
}
