package httplimit

// Keys returns how many keys the Transport remembers.
func (t *Transport) Keys() int { return t.pacer.Len() }

// ResponseOutcome is what an InflightTransport usually learns.
var ResponseOutcome = responseOutcome
