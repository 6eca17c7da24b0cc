package httplimit

// Keys returns how many keys the Transport remembers.
func (t *Transport) Keys() int { return t.pacer.Len() }

// ResponseOutcome is the default outcome of an InflightTransport.
var ResponseOutcome = responseOutcome
