package grpclimit

import "context"

// Keys returns how many keys the Client remembers.
func (c *Client) Keys() int { return c.pacer.Len() }

// The default outcomes of calls for adaptive limits.
var (
	UsualOutcome    = usualOutcome
	ResponseOutcome = responseOutcome
)

// NewClientCall returns a call of a client, or a stream of its server.
func NewClientCall(ctx context.Context, stream bool) *Call {
	return &Call{ServerStream: stream, ctx: ctx, outgoing: true}
}
