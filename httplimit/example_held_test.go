package httplimit_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// bodyFirst reads the body of each request before next gets it. Only then does net/http
// notice that a client of HTTP/1 leaves.
func bodyFirst(next http.Handler, most int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
		if err != nil {
			http.Error(w, "the body is too long, or ends early", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// A leaky bucket holds requests. Those whose clients have left give their places back, if their
// bodies were read before.
func ExampleMiddleware_Wrap_held() {
	limit := httplimit.Must(httplimit.PerIP(ratelimit.LeakyBucket(ratelimit.PerSecond(10), 20), nil))
	upload := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintln(w, n, "bytes")
	})
	h := bodyFirst(limit.Wrap(upload), 1<<20)

	r := httptest.NewRequest("POST", "/", bytes.NewReader(make([]byte, 1000)))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Print(w.Body)
	// Output: 1000 bytes
}

func TestAHeldPostWhoseClientLeavesGivesItsPlaceBackIfItsBodyWasRead(t *testing.T) {
	l, err := ratelimit.New[netip.Addr](ratelimit.LeakyBucket(ratelimit.PerHour(1), 10), nil)
	require.NoError(t, err)
	limiter, err := ratelimit.All(ratelimit.By(l, httplimit.RemoteIP))
	require.NoError(t, err)
	m := middleware(t, limiter, httplimit.Options{})
	s := httptest.NewServer(bodyFirst(m.Wrap(http.NotFoundHandler()), 100))
	defer s.Close()
	resp, err := s.Client().Post(s.URL, "text/plain", bytes.NewReader([]byte("hello"))) // the next one waits for an hour
	require.NoError(t, err)
	body(t, resp)
	room := func() int {
		d, err := l.Peek(netip.MustParseAddr("127.0.0.1"), 0)
		require.NoError(t, err)
		return d.Remaining
	}
	before := room()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return room() == before-1 }, 10*time.Second, time.Millisecond, "it is held")
	require.NoError(t, conn.Close())
	assert.Eventually(t, func() bool { return room() == before }, 10*time.Second, time.Millisecond, "it has given its place back")
}
