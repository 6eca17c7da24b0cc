package redistest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// InBubble is a client's dialer. With it redislimit's scripts read the clock of a testing/synctest bubble instead of
// the server's: InBubble adds arguments to each script call, as redislimit's own tests do. The bubble begins in 2016.
func InBubble(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &inBubble{Conn: conn}, nil
}

type inBubble struct {
	net.Conn
	part []byte // the beginning of a command
}

// Write sends all complete commands.
func (c *inBubble) Write(b []byte) (int, error) {
	c.part = append(c.part, b...)
	var all []byte
	for {
		words, rest := command(c.part)
		if words == nil {
			break
		}
		if c.part = rest; strings.HasPrefix(strings.ToLower(words[0]), "eval") {
			now := time.Now().AddDate(16, 0, 0)
			for _, n := range []int64{now.Unix(), now.UnixMicro() % 1e6, int64(time.Hour / time.Microsecond), now.UnixMicro() & 0xFFFFFF} {
				words = append(words, strconv.FormatInt(n, 10))
			}
		}
		all = fmt.Appendf(all, "*%d\r\n", len(words))
		for _, w := range words {
			all = fmt.Appendf(all, "$%d\r\n%s\r\n", len(w), w)
		}
	}
	_, err := c.Conn.Write(all)
	return len(b), err
}

// command returns the words of the first command, and the bytes behind it. It returns nil if the command is not complete.
func command(b []byte) (words []string, rest []byte) {
	line, rest, found := bytes.Cut(b, []byte("\r\n"))
	if !found {
		return nil, b
	}
	n, _ := strconv.Atoi(string(line[1:]))
	for range n {
		if line, rest, found = bytes.Cut(rest, []byte("\r\n")); !found {
			return nil, b
		}
		size, _ := strconv.Atoi(string(line[1:]))
		if len(rest) < size+2 {
			return nil, b
		}
		words, rest = append(words, string(rest[:size])), rest[size+2:]
	}
	return words, rest
}
