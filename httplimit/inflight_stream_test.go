package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

// An event stream lasts as long as its client listens, which is no evidence about the backend.
func TestAnEventStreamIsIgnored(t *testing.T) {
	for contentType, want := range map[string]inflight.Outcome{
		"text/event-stream": inflight.Ignored, "Text/Event-Stream; charset=utf-8": inflight.Ignored, "text/html": inflight.Success, "": inflight.Success,
	} {
		var got []inflight.Outcome
		m, _ := newInflight(t, 1, nil, &httplimit.InflightOptions{Outcome: func(_ *http.Request, _ int, usual inflight.Outcome) inflight.Outcome {
			got = append(got, usual)
			return usual
		}})
		h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			_, _ = w.Write([]byte("data: 1\n\n"))
		}))
		h.ServeHTTP(httptest.NewRecorder(), tenantRequest("a"))
		assert.Equal(t, []inflight.Outcome{want}, got, contentType)
	}
}
