package httplimit

import (
	"io"
	"net/http"
	"sync"
)

// onEnd calls end once, when a response's body has been read to the end, fails or is closed. After a 101, it
// calls end when the connection is closed. If the response has no body, it returns false and never calls end.
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

// endingConn is the connection after a switch of protocols.
type endingConn struct {
	io.ReadWriteCloser
	once sync.Once
	end  func(err error)
}

// Close closes the connection. It may be called more than once.
func (c *endingConn) Close() error {
	defer c.once.Do(func() { c.end(nil) })
	return c.ReadWriteCloser.Close()
}

// CloseWrite closes the writing half.
func (c *endingConn) CloseWrite() error { return closeWrite(c.ReadWriteCloser) }

// endingBody is the body of any other response.
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

// Close closes the body. If the caller does not need the rest, the server is not at fault.
func (b *endingBody) Close() error {
	defer b.ended(nil)
	return b.ReadCloser.Close()
}

func (b *endingBody) ended(err error) { b.once.Do(func() { b.end(err) }) }
