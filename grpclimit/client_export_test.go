package grpclimit

import "context"

// Keys counts the keys that the Client remembers.
func (c *Client) Keys() int { return c.pacer.Len() }

// The default outcomes of calls for adaptive limits.
var (
	UsualOutcome    = usualOutcome
	ResponseOutcome = responseOutcome
)

// NewClientCall returns a client's call, or a stream on which the server sends.
func NewClientCall(ctx context.Context, stream bool) *Call {
	return &Call{ServerStream: stream, ctx: ctx, outgoing: true}
}
