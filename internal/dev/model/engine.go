package model

import (
	"context"
	"time"

	"github.com/weir-go/ratelimit"
)

// Engine is a limiter whose decisions and errors a test sets.
type Engine struct {
	Answer     func() (ratelimit.Decision, error)
	Settled    []int // settlements' actual costs
	SettleFail error // Settle's error
}

// Allows returns an engine that allows every cost with the given decision.
func Allows(d ratelimit.Decision) *Engine {
	d.Allowed = true
	return &Engine{Answer: func() (ratelimit.Decision, error) { return d, nil }}
}

// Fails returns an engine whose calls return the error.
func Fails(err error) *Engine {
	return &Engine{Answer: func() (ratelimit.Decision, error) { return ratelimit.Decision{}, err }}
}

func (e *Engine) Allow(key string, cost int) bool {
	d, _ := e.Take(context.Background(), key, cost)
	return d.Allowed
}

func (e *Engine) Take(context.Context, string, int) (ratelimit.Decision, error) { return e.Answer() }

func (e *Engine) Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error) {
	d, err := e.Answer()
	return ratelimit.NewReservation(d, func(actual int) error {
		e.Settled = append(e.Settled, actual)
		return e.SettleFail
	}), err
}
