package httplimit

import (
	"net/http"
	"time"
)

// AdviceOf returns the advice that a Transport reads in a response received now.
func AdviceOf(resp *http.Response) Advice {
	var head []byte
	if wantsHead(resp) {
		head = headOf(resp)
	}
	return adviceOf(resp, head, time.Now())
}

// Keys returns how many keys the Transport remembers.
func (t *Transport) Keys() int { return t.pacer.Len() }

// ResponseOutcome is the default outcome of a Transport with permits.
var ResponseOutcome = responseOutcome
