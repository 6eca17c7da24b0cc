package httplimit

// Keys returns how many keys the Transport remembers.
func (t *Transport) Keys() int { return t.pacer.Len() }

// ResponseOutcome is the default outcome of a Transport with permits.
var ResponseOutcome = responseOutcome
