package httplimit

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"time"

	"github.com/weir-go/ratelimit/internal/pace"
)

// headSize is how many bytes of a refusal's body are read for advice.
const headSize = 1 << 10

// headBody is a body whose beginning is read by a goroutine. The goroutine ends with the read, or when the body is closed.
type headBody struct {
	io.ReadCloser
	done chan struct{}
	head []byte
	rest []byte // the part of head for the next calls to Read
	err  error  // the error after head
}

// headOf reads the beginning of a refusal's body for at most maxHolding, and leaves the body
// readable in full. It returns nil for other answers, and if the body has not arrived by then.
func headOf(resp *http.Response) []byte {
	if !mayRefuse(resp.StatusCode) || resp.Body == nil || resp.Body == http.NoBody {
		return nil
	}
	b := &headBody{ReadCloser: resp.Body, done: make(chan struct{})}
	resp.Body = b
	go func() {
		defer close(b.done)
		head := make([]byte, headSize)
		n, err := io.ReadFull(b.ReadCloser, head)
		if b.head = head[:n]; err == io.ErrUnexpectedEOF {
			err = io.EOF
		}
		b.rest, b.err = b.head, err
	}()
	t := time.NewTimer(maxHolding)
	defer t.Stop()
	select {
	case <-b.done:
		return b.head
	case <-t.C:
		return nil
	}
}

// Read returns the head first.
func (b *headBody) Read(p []byte) (n int, err error) {
	<-b.done
	switch {
	case len(b.rest) > 0:
		n = copy(p, b.rest)
		b.rest = b.rest[n:]
		return n, nil
	case b.err != nil:
		return 0, b.err
	}
	return b.ReadCloser.Read(p)
}

// mayRefuse reports whether answers of a status can be refusals.
func mayRefuse(status int) bool { return status >= http.StatusBadRequest }

// withHead returns a copy of the response whose body is the head.
func withHead(resp *http.Response, head []byte) *http.Response {
	if !mayRefuse(resp.StatusCode) {
		return resp
	}
	shown := *resp
	shown.Body = io.NopCloser(bytes.NewReader(head))
	return &shown
}

// The forms of a wait in a refusal's body. One is google.rpc.RetryInfo in JSON, such as "retryDelay":
// "37s". The other is a message of OpenAI or its imitators, such as "Please try again in 1m2.5s".
var (
	retryInfo  = regexp.MustCompile(`"retryDelay"\s*:\s*"([0-9]+(?:\.[0-9]+)?s)"`)
	tryAgainIn = regexp.MustCompile(`(?i)try again in ((?:[0-9]+(?:\.[0-9]+)?(?:h|ms|m|s))+)`)
	// GitHub documents a wait of a minute for a secondary limit without Retry-After.
	secondary = regexp.MustCompile(`(?i)secondary rate limit`)
)

// secondaryWait is the wait of GitHub's secondary limits.
const secondaryWait = time.Minute

// bodyWait returns the wait in the head of a refusal's body, or 0 if there is none.
func bodyWait(head []byte) time.Duration {
	for _, pattern := range []*regexp.Regexp{retryInfo, tryAgainIn} {
		if found := pattern.FindSubmatch(head); found != nil {
			if d, err := time.ParseDuration(string(found[1])); err == nil {
				return pace.Clamp(max(d, 1))
			}
		}
	}
	return 0
}
