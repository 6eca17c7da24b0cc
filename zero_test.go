package ratelimit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
)

func TestAZeroKeyedSaysWhatToUseInstead(t *testing.T) {
	for name, call := range map[string]func(l *ratelimit.Keyed[string]){
		"Allow":    func(l *ratelimit.Keyed[string]) { l.Allow("k", 1) },
		"Take":     func(l *ratelimit.Keyed[string]) { _, _ = l.Take(t.Context(), "k", 1) },
		"Peek":     func(l *ratelimit.Keyed[string]) { _, _ = l.Peek("k", 1) },
		"Reserve":  func(l *ratelimit.Keyed[string]) { _, _ = l.Reserve(t.Context(), "k", 1, 0) },
		"Wait":     func(l *ratelimit.Keyed[string]) { _ = l.Wait(t.Context(), "k", 1) },
		"Adjust":   func(l *ratelimit.Keyed[string]) { _ = l.Adjust("k", 1) },
		"Reset":    func(l *ratelimit.Keyed[string]) { l.Reset("k") },
		"Refresh":  func(l *ratelimit.Keyed[string]) { l.Refresh("k") },
		"Refresh0": func(l *ratelimit.Keyed[string]) { l.Refresh() },
		"SetLimit": func(l *ratelimit.Keyed[string]) { _ = l.SetLimit(onceADay) },
		"Sweep":    func(l *ratelimit.Keyed[string]) { l.Sweep() },
		"Len":      func(l *ratelimit.Keyed[string]) { l.Len() },
		"Stats":    func(l *ratelimit.Keyed[string]) { l.Stats() },
		"Limits":   func(l *ratelimit.Keyed[string]) { l.Limits() },
	} {
		assert.PanicsWithValue(t, "ratelimit: zero Keyed; use New", func() { call(new(ratelimit.Keyed[string])) }, name)
	}
}

func TestAStackRefusesAZeroKeyed(t *testing.T) {
	_, err := ratelimit.All(ratelimit.By(new(ratelimit.Keyed[string]), func(key string) (string, error) { return key, nil }))
	assert.EqualError(t, err, "ratelimit: layer 0: By was given a zero Keyed; use New")
}
