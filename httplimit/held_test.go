package httplimit_test

import (
	"bytes"
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
