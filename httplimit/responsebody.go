package httplimit

import (
	"io"
	"net/http"
	"sync"
)

// onEnd calls end once, when the body of a response has been read to the end, fails or is closed. After 101 it
// calls end when the connection is closed. If the response has no body, it reports false and does not call end.
func onEnd(resp *http.Response, end func(err error)) bool {
	switch {
	case resp.Body == nil, resp.Body == http.NoBody:
		return false
	case resp.StatusCode != http.StatusSwitchingProtocols:
		resp.Body = &endingBody{ReadCloser: resp.Body, end: end}
		return true
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if ok {
		resp.Body = &endingConn{ReadWriteCloser: conn, end: end}
	}
	return ok
}

// endingConn is the connection of a caller that has switched protocols.
type endingConn struct {
	io.ReadWriteCloser
	once sync.Once
	end  func(err error)
}

// Close closes the connection. It may be called several times.
func (c *endingConn) Close() error {
	defer c.once.Do(func() { c.end(nil) })
	return c.ReadWriteCloser.Close()
}

// CloseWrite closes the writing half.
func (c *endingConn) CloseWrite() error { return closeWrite(c.ReadWriteCloser) }

// endingBody is the body of another response.
type endingBody struct {
	io.ReadCloser
	once sync.Once
	end  func(err error)
}

func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.ended(nil)
	case err != nil:
		b.ended(err)
	}
	return n, err
}

// Close ends a body that was not read to the end. If the caller does not need the rest, that is no fault of the server.
func (b *endingBody) Close() error {
	defer b.ended(nil)
	return b.ReadCloser.Close()
}

func (b *endingBody) ended(err error) { b.once.Do(func() { b.end(err) }) }
