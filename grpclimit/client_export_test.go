package grpclimit

import "context"

// Keys counts the keys in the Client's table.
func (c *Client) Keys() int { return c.pacer.Len() }

// These are calls' default outcomes for adaptive limits.
var (
	UsualOutcome    = usualOutcome
	ResponseOutcome = responseOutcome
)

// NewClientCall returns a client's call. If stream is true, the server may send several messages.
func NewClientCall(ctx context.Context, stream bool) *Call {
	return &Call{ServerStream: stream, ctx: ctx, outgoing: true}
}
