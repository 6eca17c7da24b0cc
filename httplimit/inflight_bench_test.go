package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

// inflightCalls returns functions that send a request each to a handler behind a limit in flight.
func inflightCalls(t testing.TB) map[string]func() {
	calls := make(map[string]func())
	for name, o := range map[string]*inflightOptions{"fixed": nil, "adaptive": {Adaptive: inflight.Learn(nil)}} {
		m, err := httplimit.NewInflight(ratelimit.Must(inflight.New(10, o)), byTenant, nil)
		if err != nil {
			t.Fatal(err)
		}
		h := m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		w, r := &discard{http.Header{}}, httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Tenant", "a")
		plain := *r
		calls[name] = func() {
			*r = plain // each request has its own context
			h.ServeHTTP(w, r)
		}
		calls[name]()
	}
	return calls
}

func BenchmarkInflight(b *testing.B) {
	for name, call := range inflightCalls(b) {
		b.Run("limit="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				call()
			}
		})
	}
}

func TestInflightAllocatesOnlyForLimitsThatLearn(t *testing.T) {
	calls := inflightCalls(t)
	assert.Zero(t, testing.AllocsPerRun(100, calls["fixed"]))
	assert.LessOrEqual(t, testing.AllocsPerRun(100, calls["adaptive"]), 3.0, "the mark, the request and the writer")
}

// discard is a writer that costs nothing itself.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
