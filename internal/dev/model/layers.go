package model

import "github.com/weir-go/ratelimit"

// WithCost returns a copy of a layer with a Cost.
func WithCost[R any](y ratelimit.Layer[R], cost func(R) int) ratelimit.Layer[R] {
	y.Cost = cost
	return y
}

// WithLimit returns a copy of a layer with a Limit.
func WithLimit[R any](y ratelimit.Layer[R], limit func(R) ratelimit.Limit) ratelimit.Layer[R] {
	y.Limit = limit
	return y
}

// AsShadow returns a copy of a layer as a Shadow.
func AsShadow[R any](y ratelimit.Layer[R]) ratelimit.Layer[R] {
	y.Shadow = true
	return y
}

// ObservedBy returns a copy of a layer with an Observe.
func ObservedBy[R any](y ratelimit.Layer[R], observe func(ratelimit.Event[R])) ratelimit.Layer[R] {
	y.Observe = observe
	return y
}
