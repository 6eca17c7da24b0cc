package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// dial makes a WebSocket handshake for a user. It returns the connection, and the answer's status.
func dial(t *testing.T, addr, user string) (net.Conn, *bufio.Reader, int) {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nUser: "+user+
		"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	require.NoError(t, err)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	if resp.StatusCode == http.StatusSwitchingProtocols {
		assert.Equal(t, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", resp.Header.Get("Sec-WebSocket-Accept"), "the example of RFC 6455")
	}
	return conn, r, resp.StatusCode
}

// frame returns a client's frame, with a mask.
func frame(opcode byte, text string) []byte {
	b := []byte{0x80 | opcode, 0x80 | byte(len(text)), 1, 2, 3, 4}
	for i := range text {
		b = append(b, text[i]^b[2+i%4])
	}
	return b
}

func TestAUserHasTwoConnections(t *testing.T) {
	handler, err := newServer()
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	addr := strings.TrimPrefix(server.URL, "http://")
	first, r, status := dial(t, addr, "ann")
	require.Equal(t, http.StatusSwitchingProtocols, status)
	second, _, status := dial(t, addr, "ann")
	require.Equal(t, http.StatusSwitchingProtocols, status)
	_, _, status = dial(t, addr, "ann")
	assert.Equal(t, http.StatusTooManyRequests, status)
	_, _, status = dial(t, addr, "bob")
	assert.Equal(t, http.StatusSwitchingProtocols, status)

	_, err = first.Write(frame(1, "hello"))
	require.NoError(t, err)
	answer := make([]byte, 7)
	_, err = io.ReadFull(r, answer)
	require.NoError(t, err)
	assert.Equal(t, "\x81\x05hello", string(answer))

	_, err = first.Write(frame(8, "")) // a client may close its connection with a close frame or without one
	require.NoError(t, err)
	require.NoError(t, second.Close())
	for range 2 {
		require.Eventually(t, func() bool {
			_, _, status := dial(t, addr, "ann")
			return status == http.StatusSwitchingProtocols
		}, 20*time.Second, 300*time.Millisecond)
	}
	_, _, status = dial(t, addr, "ann")
	assert.Equal(t, http.StatusTooManyRequests, status)
}
