// Websocket is a server that echoes the messages of WebSocket
// connections. Each user may have two connections at the same time:
//
//	go run ./examples/websocket
//	curl -i -H 'User: ann' http://127.0.0.1:8080/    # a page that counts as a connection while it loads
//
// A connection holds its unit until it is closed. If the limiter is on a store, such as
// redislimit's, httplimit extends the unit every third of hold. A third connection gets 429
// before the handshake. A real server would find the user by a session instead of a header.
package main

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "`address` to listen on")
	flag.Parse()
	handler, err := newServer()
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*addr, handler))
}

// newServer returns the server. Each user may have two connections, and may open thirty in a minute.
func newServer() (http.Handler, error) {
	open, err := ratelimit.New[string](ratelimit.Concurrent(2, time.Minute).Named("connections"), nil)
	if err != nil {
		return nil, err
	}
	opened, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(30), 30).Named("opened"), nil)
	if err != nil {
		return nil, err
	}
	both, err := ratelimit.All(ratelimit.By(open, user), ratelimit.By(opened, user))
	if err != nil {
		return nil, err
	}
	limit, err := httplimit.New(both, nil)
	if err != nil {
		return nil, err
	}
	return limit.Wrap(http.HandlerFunc(echo)), nil
}

func user(r *http.Request) (string, error) {
	if name := r.Header.Get("User"); name != "" {
		return name, nil
	}
	return "", errors.New("the header User is missing")
}

// echo performs the handshake of RFC 6455, and returns each message to its sender until the connection is closed.
func echo(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Sec-WebSocket-Key")
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || key == "" {
		w.Header().Set("Upgrade", "websocket")
		http.Error(w, "want a WebSocket", http.StatusUpgradeRequired)
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "cannot take the connection over", http.StatusInternalServerError)
		return
	}
	defer conn.Close() // this gives the unit back
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
		base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n")
	for err = rw.Flush(); err == nil; err = rw.Flush() {
		conn.SetReadDeadline(time.Now().Add(time.Minute)) // the connection ends if the client is silent for longer
		head, text, err := readFrame(rw.Reader)
		if err != nil {
			return
		}
		switch opcode := head & 0x0f; opcode {
		case 0x8: // a close frame
			writeFrame(rw.Writer, head, text)
			rw.Flush()
			return
		case 0x9: // a ping frame
			writeFrame(rw.Writer, head&0xf0|0xa, text)
		case 0x0, 0x1, 0x2: // a message or a part of one
			writeFrame(rw.Writer, head, text)
		}
	}
}

var errFrame = errors.New("a frame that this server does not take")

// readFrame reads a client's frame. It returns the first byte and the text.
func readFrame(r *bufio.Reader) (head byte, text []byte, err error) {
	var b [8]byte
	if _, err = io.ReadFull(r, b[:2]); err != nil {
		return 0, nil, err
	}
	head = b[0]
	masked, size := b[1]&0x80 != 0, int(b[1]&0x7f)
	if !masked || size == 127 || head&0x70 != 0 { // a message above 64 KiB, or an extension that was not negotiated
		return 0, nil, errFrame
	}
	if size == 126 {
		if _, err = io.ReadFull(r, b[:2]); err != nil {
			return 0, nil, err
		}
		size = int(binary.BigEndian.Uint16(b[:2]))
	}
	var mask [4]byte
	if _, err = io.ReadFull(r, mask[:]); err != nil {
		return 0, nil, err
	}
	text = make([]byte, size)
	_, err = io.ReadFull(r, text)
	for i := range text {
		text[i] ^= mask[i%4]
	}
	return head, text, err
}

// writeFrame writes a server's frame, without a mask. Flush returns the error of a failed write.
func writeFrame(w *bufio.Writer, head byte, text []byte) {
	w.WriteByte(head)
	if len(text) < 126 {
		w.WriteByte(byte(len(text)))
	} else {
		w.WriteByte(126)
		w.Write(binary.BigEndian.AppendUint16(nil, uint16(len(text))))
	}
	w.Write(text)
}
