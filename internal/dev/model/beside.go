package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// A Store makes limiters.
type Store struct {
	Clock Clock
	New   func(ratelimit.Limit) ratelimit.Reserver[string]
	Calls func() int64 // counts the calls to its server, nil if it has none
}

// BesideRates plays calls that hold a user's two streams and a team's three, and spend the user's 100 tokens. A shadow allows one stream per user.
func BesideRates(t *testing.T, store func(*testing.T) Store) {
	ann, bob, eve, joe := Stream{"ann", "a"}, Stream{"bob", "a"}, Stream{"eve", "a"}, Stream{"joe", "b"}
	for name, play := range map[string]func(*testing.T, *beside){
		"a denial by one limit charges none": func(t *testing.T, b *beside) {
			for i, c := range []struct {
				call   Stream
				tokens int
				by     string // the limit that denies the call, if any
				shadow bool   // whether the shadow allows it
				left   [4]int
			}{
				{ann, 40, "", true, [4]int{1, 2, 60, 0}},
				{ann, 30, "", false, [4]int{0, 1, 30, 0}},
				{ann, 5, "streams", false, [4]int{0, 1, 30, 0}},
				{bob, 100, "", true, [4]int{1, 0, 0, 0}},
				{bob, 1, "tokens", false, [4]int{1, 0, 0, 0}}, // nor has the team a stream
				{eve, 10, "team", true, [4]int{2, 0, 100, 1}},
				{joe, 100, "", true, [4]int{1, 2, 0, 0}},
				{joe, 1, "tokens", false, [4]int{1, 2, 0, 0}},
			} {
				r := b.reserve(t, c.call, c.tokens)
				assert.Equal(t, c.by == "", r.Allowed, i)
				if !r.Allowed {
					assert.Equal(t, c.by, r.Limit.Name, i)
				}
				assert.Equal(t, c.left, b.left(t, c.call), i)
				require.Len(t, b.shadow, i+1)
				assert.Equal(t, c.shadow, b.shadow[i].Decision.Allowed, i)
				assert.Equal(t, r.Allowed && c.shadow, b.shadow[i].Spent, i)
			}
		},
		"a settlement returns streams and corrects tokens": func(t *testing.T, b *beside) {
			first, second := b.reserve(t, ann, 40), b.reserve(t, ann, 30)
			require.NoError(t, first.Settle(10), "30 tokens come back, and the stream")
			assert.Equal(t, [4]int{1, 2, 60, 1}, b.left(t, ann))
			require.NoError(t, second.Settle(90), "60 tokens more are charged, and no streams")
			assert.Equal(t, [4]int{2, 3, 0, 1}, b.left(t, ann))
			require.NoError(t, b.Adjust(t.Context(), ann, -50))
			assert.Equal(t, [4]int{2, 3, 50, 1}, b.left(t, ann))
			zero := b.reserve(t, ann, 0)
			require.True(t, zero.Allowed)
			assert.Equal(t, [4]int{2, 3, 50, 1}, b.left(t, ann), "a cost of 0 holds nothing")
			require.NoError(t, zero.Settle(5))
			assert.Equal(t, [4]int{2, 3, 45, 1}, b.left(t, ann))
		},
		"streams are held while they are extended": func(t *testing.T, b *beside) {
			first, second := b.reserve(t, ann, 40), b.reserve(t, ann, 40)
			b.clock.Advance(20 * time.Second)
			b.inOneCall(t, func() error { return first.Extend(t.Context()) })
			b.clock.Advance(40 * time.Second)
			require.ErrorIs(t, second.Extend(t.Context()), ratelimit.ErrLost)
			require.NoError(t, first.Extend(t.Context()), "only the shadow's unit has lapsed")
			b.clock.Advance(50 * time.Second)
			assert.Equal(t, [4]int{1, 2, 31, 1}, b.left(t, ann), "100 − 80 + 11 regained")
			require.NoError(t, second.Settle(0), "which gives all tokens back")
			assert.Equal(t, [4]int{1, 2, 71, 1}, b.left(t, ann))
			require.NoError(t, first.Settle(40), "the reserved figure gives the units back, too")
			assert.Equal(t, [4]int{2, 3, 71, 1}, b.left(t, ann))
			require.ErrorIs(t, first.Extend(t.Context()), ratelimit.ErrLost)
		},
		"a call without an end is an error": func(t *testing.T, b *beside) {
			assert.True(t, b.Describe().Holds)
			assert.False(t, b.Allow(ann, 10))
			_, err := b.Take(t.Context(), ann, 10)
			require.ErrorContains(t, err, `the limit "streams" is concurrent 2 hold 1m, and this call has no end`)
			require.ErrorContains(t, err, "layer 0: ")
			require.NotErrorIs(t, err, ratelimit.ErrUnavailable)
			require.ErrorContains(t, b.Wait(t.Context(), ann, 10), "no end")
			assert.Equal(t, [4]int{2, 3, 100, 1}, b.left(t, ann), "an error charges nothing")
		},
	} {
		t.Run(name, func(t *testing.T) { play(t, newBeside(t, store(t))) })
	}
}

type beside struct {
	*ratelimit.Layered[Stream]
	clock  Clock
	calls  func() int64
	shadow []ratelimit.Event[Stream] // the shadow's decisions
}

func newBeside(t *testing.T, s Store) *beside {
	b := &beside{clock: s.Clock}
	user, team := func(c Stream) (string, error) { return c.User, nil }, func(c Stream) (string, error) { return c.Team, nil }
	all := []ratelimit.Layer[Stream]{
		ratelimit.By(s.New(ratelimit.Concurrent(2, time.Minute).Named("streams")), user),
		ratelimit.By(s.New(ratelimit.Concurrent(3, time.Minute).Named("team")), team),
		ratelimit.By(s.New(ratelimit.TokenBucket(ratelimit.PerMinute(6), 100).Named("tokens")), user),
		ratelimit.By(s.New(ratelimit.Concurrent(1, 30*time.Second).Named("tried")), user),
	}
	for _, i := range []int{0, 1, 3} {
		all[i].Cost = func(Stream) int { return 1 }
	}
	all[3].Shadow, all[3].Observe = true, func(e ratelimit.Event[Stream]) { b.shadow = append(b.shadow, e) }
	b.Layered = ratelimit.Must(ratelimit.All(all...))
	warm := b.reserve(t, Stream{"warm", "w"}, 1) // loads the scripts of a server
	require.NoError(t, warm.Extend(t.Context()))
	require.NoError(t, warm.Cancel())
	b.calls, b.shadow = s.Calls, nil
	return b
}

func (b *beside) reserve(t *testing.T, c Stream, tokens int) (r *ratelimit.Reservation) {
	t.Helper()
	b.inOneCall(t, func() (err error) { r, err = b.Reserve(t.Context(), c, tokens, 0); return err })
	return r
}

// inOneCall asserts that the server, if there is one, gets one call.
func (b *beside) inOneCall(t *testing.T, play func() error) {
	t.Helper()
	if b.calls != nil {
		want := b.calls() + 1
		defer func() { t.Helper(); require.Equal(t, want, b.calls()) }()
	}
	require.NoError(t, play())
}

// left returns how many units the layers have left.
func (b *beside) left(t *testing.T, c Stream) (n [4]int) {
	t.Helper()
	each, err := b.PeekEach(t.Context(), c, 1)
	require.NoError(t, err)
	for i, d := range each {
		n[i] = d.Remaining
		assert.Equal(t, n[i] > 0, d.Allowed, "layer %d", i)
	}
	return n
}
