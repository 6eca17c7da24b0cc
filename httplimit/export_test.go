package httplimit

// Keys returns how many keys the Transport remembers.
func (t *Transport) Keys() int { return t.pacer.Len() }

// ResponseOutcome is a Transport's default outcome with permits.
var ResponseOutcome = responseOutcome
