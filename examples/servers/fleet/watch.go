package main

import (
	"sync"
	"time"
)

const (
	watchEvery = 250 * time.Millisecond
	watched    = 5 // samples kept: about one second
	maxBatch   = 10
)

// second is the sum of all servers' admissions in about the last second, and the bound.
type second struct {
	Admitted float64 `json:"admitted"` // a second
	Limit    float64 `json:"limit"`    // a second, of all clients of the load
	Bound    float64 `json:"bound"`    // the most that may be admitted in one second
}

// sample is the fleet's state at one instant.
type sample struct {
	at      time.Time
	allowed int64
	lost    int
	alone   bool // whether a server decides alone
}

// watch takes samples of the fleet.
type watch struct {
	fleet *fleet
	done  chan struct{}
	ended sync.WaitGroup

	mu      sync.Mutex // guards samples
	samples []sample
}

func startWatch(f *fleet) *watch {
	w := &watch{fleet: f, done: make(chan struct{})}
	w.take()
	w.ended.Go(func() {
		ticker := time.NewTicker(watchEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				w.take()
			case <-w.done:
				return
			}
		}
	})
	return w
}

func (w *watch) stop() {
	close(w.done)
	w.ended.Wait()
}

func (w *watch) take() {
	w.fleet.mu.Lock()
	s := sample{at: time.Now(), lost: w.fleet.lost, alone: w.fleet.down}
	w.fleet.mu.Unlock()
	for _, n := range w.fleet.nodes {
		c := n.counts()
		s.allowed += c.Allowed
		s.alone = s.alone || c.Breaker != "closed"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples = append(w.samples, s)
	if len(w.samples) > watched {
		w.samples = w.samples[1:]
	}
}

// last returns the admissions from the first sample to the last one.
func (w *watch) last() second {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, last := w.samples[0], w.samples[len(w.samples)-1]
	all := second{Limit: clients * float64(limit.Rate.Units), Bound: clients * bound(w.samples)}
	if took := last.at.Sub(first.at).Seconds(); took > 0 {
		all.Admitted = float64(last.allowed-first.allowed) / took
	}
	return all
}

// bound returns the maximum admitted to one client in a second: the limit's own maximum, and a batch in each server.
// While a server is alone, its share is added. Each time the store has lost its keys, the burst is added again.
func bound(samples []sample) float64 {
	most := float64(limit.Burst + limit.Rate.Units + nodes*maxBatch)
	alone := false
	for _, s := range samples {
		alone = alone || s.alone
	}
	if alone {
		most += nodes * float64(share.Burst+share.Rate.Units)
	}
	return most + float64(limit.Burst*(samples[len(samples)-1].lost-samples[0].lost))
}
