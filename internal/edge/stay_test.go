package edge_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// A request holds a unit until all its parts have ended, however long they
// run. If the unit is lost, the handler's context ends, except in a shadow.
func TestARequestHoldsItsUnitUntilItsPartsHaveEnded(t *testing.T) {
	const served = 10 * time.Hour // many times as long as the hold
	for name, row := range map[string]struct {
		opts   edge.Options[*request]
		part   bool // whether one of its parts ends 10 hours after the handler
		lost   bool
		serves time.Duration // the time until the handler's context ends
		warned bool
	}{
		"the handler":                      {edge.Options[*request]{}, false, false, served, false},
		"the handler, settled":             {edge.Options[*request]{Settles: true}, false, false, served, false},
		"a connection outlives it":         {edge.Options[*request]{}, true, false, served, false},
		"lost":                             {edge.Options[*request]{}, false, true, time.Hour + 20*time.Second, true},
		"lost, in a shadow, where it ends": {edge.Options[*request]{Shadow: true}, false, true, served, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(1, time.Minute), nil))
				log, lines := logger()
				row.opts.Logger = log
				m := newMiddleware(t, ratelimit.Must(ratelimit.All(ratelimit.By(one, client))), row.opts)
				ended := make(chan context.Context, 1)
				var part *edge.Stay[*request]
				begin := time.Now()
				go m.serve(t.Context(), func(ctx context.Context, c *edge.Charge[*request]) {
					if row.part {
						part = c.Stay()
						part.Share()
					}
					select {
					case <-time.After(served):
					case <-ctx.Done():
						assert.ErrorIs(t, context.Cause(ctx), ratelimit.ErrLost)
					}
					assert.Equal(t, row.serves, time.Since(begin))
					ended <- ctx
				})
				busy := func() bool { return !ratelimit.Must(one.Peek(t.Context(), "client", 1)).Allowed }
				time.Sleep(time.Hour + 10*time.Second)
				assert.True(t, busy())
				if row.lost {
					require.NoError(t, one.Reset(t.Context(), "client"))
				}
				ctx := <-ended
				synctest.Wait()
				if row.part {
					assert.NoError(t, ctx.Err(), "a hijacked connection may use it")
					time.Sleep(served)
					assert.True(t, busy())
					part.End()
				}
				assert.False(t, busy())
				assert.True(t, row.opts.Shadow || ctx.Err() != nil, "nothing of it is left")
				assert.Equal(t, row.warned, lines.Len() > 0)
				time.Sleep(time.Hour)
				assert.Equal(t, row.warned, lines.Len() > 0, "nor extended any more")
			})
		})
	}
}
