package ratelimittest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

var _ interface {
	ratelimit.Clock
	Wall() time.Time
} = new(ratelimittest.Clock)

func TestAClocksWallTimeMovesWithIt(t *testing.T) {
	var clock ratelimittest.Clock
	assert.Equal(t, time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC), clock.Wall())
	clock.Advance(time.Hour)
	day := time.Date(2026, 3, 29, 2, 0, 0, 5, time.UTC)
	clock.SetWall(day)
	assert.Equal(t, time.Hour, clock.Now())
	assert.Equal(t, day, clock.Wall())
	clock.Advance(time.Minute)
	assert.Equal(t, day.Add(time.Minute), clock.Wall())
	clock.Set(0)
	assert.Equal(t, day.Add(-time.Hour), clock.Wall())
}
