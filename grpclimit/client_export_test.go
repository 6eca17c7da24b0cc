package grpclimit

// Keys returns how many keys the Client remembers.
func (c *Client) Keys() int { return c.pacer.Len() }

// What adaptive limits usually learn.
var (
	UsualOutcome    = usualOutcome
	ResponseOutcome = responseOutcome
)
