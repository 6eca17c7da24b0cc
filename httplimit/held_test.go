package httplimit_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

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
		d, err := l.Peek(context.Background(), netip.MustParseAddr("127.0.0.1"), 0)
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

func TestAHeldRequestThatFindsNoRoomAmongTheWaitingGets503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[netip.Addr]{MaxWaiting: 1}))
		m, err := httplimit.New(ratelimit.Map(l, httplimit.RemoteIP), &httplimit.Options{MaxHold: time.Minute})
		require.NoError(t, err)
		h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
		var codes [3]int
		var wg sync.WaitGroup
		for i := range codes {
			wg.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				codes[i] = w.Code
				assert.Len(t, w.Header()["Ratelimit"], 1, "once")
			})
			synctest.Wait()
		}
		require.Equal(t, 1, l.Stats().Waiting)
		require.Equal(t, http.StatusServiceUnavailable, codes[2], "at once")
		wg.Wait()
		require.Equal(t, [3]int{204, 204, 503}, codes)
		require.Zero(t, l.Stats().Waiting)
	})
}
