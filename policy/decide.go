package policy

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/wait"
)

// peek returns Take's decision on the charges now.
func (d *decider) peek(ctx context.Context, c *charges, cost int) (ratelimit.Decision, error) {
	if d.shares(c) {
		return d.peekShared(ctx, c, cost)
	}
	return d.peekStack(ctx, c, cost)
}

func (d *decider) adjust(ctx context.Context, c *charges, delta int) error {
	if d.shares(c) {
		return d.adjustShared(ctx, c, delta)
	}
	return d.of(c).Adjust(ctx, c, delta)
}

func (d *decider) take(ctx context.Context, c *charges, cost int) (ratelimit.Decision, error) {
	if d.shares(c) {
		return d.takeShared(ctx, c, cost)
	}
	return d.stack.Take(ctx, c, cost)
}

func (d *decider) reserve(ctx context.Context, c *charges, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if !d.shares(c) {
		res, err := d.stack.Reserve(ctx, c, cost, maxDelay)
		return d.settledBy(c, res), err
	}
	res, err := d.reserveShared(wait.OrBackground(ctx), c, cost, maxDelay)
	return d.settledBy(c, res), err
}

func (d *decider) wait(ctx context.Context, c *charges, cost int) error {
	if d.shares(c) {
		return d.waitShared(wait.OrBackground(ctx), c, cost)
	}
	return d.stack.Wait(ctx, c, cost)
}

// settledBy returns a reservation: it settles each charge by its own rule.
func (d *decider) settledBy(c *charges, inner *ratelimit.Reservation) *ratelimit.Reservation {
	if inner == nil || !inner.Allowed || !slices.ContainsFunc(c.List, func(ch charge) bool { return d.rules[ch.Rule].settles() }) {
		return inner
	}
	return settledAs(inner, func(actual int) error {
		c.given = actual
		err := inner.Settle(actual)
		return errors.Join(append([]error{err}, c.failed...)...)
	})
}
