package httplimit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
)

// tenure is how long a request keeps its permit. It lasts until
// the handler has returned and any hijacked connection is closed.
type tenure struct {
	parts atomic.Int32 // open parts
	end   func()       // called once, when the last part ends
}

// newTenure returns a tenure with one part, the handler's.
func newTenure(end func()) *tenure {
	t := &tenure{end: end}
	t.parts.Store(1)
	return t
}

// done ends one part of the tenure. The last part's end ends the tenure.
func (t *tenure) done() {
	if t.parts.Add(-1) == 0 {
		t.end()
	}
}

// hijacked returns a connection with the permit, until the connection is closed. If the connection
// is dropped without being closed, its finalizer closes it, so the permit comes back, too.
func (t *tenure) hijacked(conn net.Conn) net.Conn {
	t.parts.Add(1)
	p := &tenurePart{t: t}
	c := &tenantConn{Conn: conn, part: p}
	runtime.AddCleanup(c, (*tenurePart).done, p)
	return c
}

// tenurePart is a part of a tenure. It ends only once.
type tenurePart struct {
	t    *tenure
	once sync.Once
}

func (p *tenurePart) done() { p.once.Do(p.t.done) }

// tenantConn is a hijacked connection. It has each method for which code tests
// a connection's type. A method fails if the server's connection lacks it.
type tenantConn struct {
	net.Conn
	part *tenurePart
}

// Close closes the connection and gives the permit back.
func (c *tenantConn) Close() error {
	defer c.part.done()
	return c.Conn.Close()
}

// NetConn returns the server's connection. Closing it does not give the permit back: close c.
func (c *tenantConn) NetConn() net.Conn { return c.Conn }

// ReadFrom is called by io.Copy. It uses the ReadFrom of the server's connection if there is one.
func (c *tenantConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

// WriteTo is called by io.Copy. It uses the WriteTo of the server's connection if there is one.
func (c *tenantConn) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, c.Conn) }

// CloseWrite closes the writing half.
func (c *tenantConn) CloseWrite() error { return closeWrite(c.Conn) }

// SyscallConn returns the raw connection.
func (c *tenantConn) SyscallConn() (syscall.RawConn, error) {
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, fmt.Errorf("httplimit: %T has no SyscallConn: %w", c.Conn, errors.ErrUnsupported)
}

// closeWrite closes the writing half of a connection, or fails if the connection has no CloseWrite.
func closeWrite(conn any) error {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return fmt.Errorf("httplimit: %T has no CloseWrite: %w", conn, errors.ErrUnsupported)
}
