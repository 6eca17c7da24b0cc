package grpclimit

import (
	"fmt"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/pace"
)

// ClientOptions are the settings of [NewClient] besides the limiter. Nil and the zero
// ClientOptions mean the defaults. Functions in it are called concurrently.
type ClientOptions struct {
	// Key groups calls: those of one key wait in one queue, and what the server says to
	// one of them holds for all. If nil, the target of the connection. Give one of your own
	// if a server limits each account or method: then an exhausted one does not hold up
	// others.
	Key func(c *ClientCall) string

	// Cost returns what a call costs in the limiter. If nil, the cost that its context
	// declares ([httplimit.WithCost]), else 1.
	Cost func(c *ClientCall) int

	// MaxWait is how long a call may wait before it is sent. One that would have to wait
	// longer fails at once, with [ratelimit.ErrLimited] and the code ResourceExhausted. If
	// zero, as long as its context allows, without end if that has no deadline.
	MaxWait time.Duration

	// MaxServerWait is the longest wait that a server is believed: a longer one counts as
	// this. If zero, ten years. See also [Client.Reset].
	MaxServerWait time.Duration

	// MaxRetries is how many times a unary call is sent again that the server has
	// refused, after the time that it has asked for. If zero, the refusal goes to the
	// caller. A call is sent again only if the server asks for a retry, with
	// RESOURCE_EXHAUSTED, and RetryInfo or a pushback of 0 or more, and if no headers came
	// before: a server that has sent headers has begun to process the call. A handler that
	// did work and then ends with such a status, without headers, cannot be told apart
	// from a denial: it runs again. If the call cannot be sent again, the caller gets the
	// refusal: at once if its context's deadline or MaxWait comes before the time that the
	// server has asked for, else when the context ends or the limiter leaves no time.
	// Streams are never opened again.
	MaxRetries int

	// MaxKeys bounds for how many keys the Client remembers what their servers have said.
	// Beyond that it forgets keys without calls under way. If zero, 4096.
	MaxKeys int
}

// Client makes interceptors for client connections: they keep to a limit of the client's
// own, and obey what servers say. Make one with [NewClient], and give both of its
// interceptors to the connection:
//
//	conn, err := grpc.NewClient(target,
//		grpc.WithChainUnaryInterceptor(client.UnaryClientInterceptor()),
//		grpc.WithChainStreamInterceptor(client.StreamClientInterceptor()))
//
// Each call waits in the queue of its key until the limiter allows it, first come, first
// served. A stream waits before it is opened; its messages do not wait. If the context's
// deadline comes before the call's time, the call fails at once, with the code
// DeadlineExceeded and an error that wraps [context.DeadlineExceeded].
//
// From a call that ends with RESOURCE_EXHAUSTED or UNAVAILABLE the Client learns when the
// key's next call may be sent: not before the retry_delay of google.rpc.RetryInfo in the
// status details, and not before the pushback in the trailer grpc-retry-pushback-ms
// (gRFC A6) is over. If both are there, the later end counts. A negative retry_delay is
// ignored. A pushback that is negative or malformed says not to retry the call; it says
// nothing about others. An error that tells no time holds up nobody: it may be
// about one call only, such as a message that is too large.
//
// From the metadata of an answer it learns what the server leaves until a reset, by the fields
// that a [httplimit.Transport] reads, such as the trailers of [Options].LimitTrailers: no more
// calls than that are sent.
//
// After a refusal, calls are sent one at a time first, and with each that is served one
// more may be in flight. So not all who wait are refused again at once. For this a stream
// is served when its caller receives headers or the first message. A call or stream of
// which nothing has come for a second counts as served: a refusal would have come by then.
// All this ends a minute after the wait.
//
// While a key has to wait, all its calls wait in their order, and what they had booked in the
// limiter is given back. Those whose deadline comes before the end fail at once. Calls
// that were on their way already are not called back.
//
// A retry policy in the connection's service config retries beneath the interceptors: it
// obeys pushback by itself, but its attempts neither wait in the queue nor spend in the
// limiter. Use either that or MaxRetries.
//
// A Client is safe for concurrent use, may serve any number of connections, and starts no
// goroutine. The zero Client cannot be used: its interceptors panic.
type Client struct {
	pacer *pace.Pacer[*ClientCall]
	opts  ClientOptions
}

// NewClient returns a Client whose calls are sent as the limiter allows. It is asked with
// the calls themselves: see [ratelimit.Map]. To have no limit but the server's, give one
// of [ratelimit.Unlimited]. The error names the option that is wrong.
func NewClient(l ratelimit.Reserver[*ClientCall], opts *ClientOptions) (*Client, error) {
	if err := edge.Check("grpclimit", "NewClient", "call", l); err != nil {
		return nil, err
	}
	c := new(Client)
	if opts != nil {
		c.opts = *opts
	}
	o := &c.opts
	switch {
	case o.MaxWait < 0:
		return nil, fmt.Errorf("grpclimit: ClientOptions.MaxWait is %v, want 0 or more", o.MaxWait)
	case o.MaxServerWait < 0:
		return nil, fmt.Errorf("grpclimit: ClientOptions.MaxServerWait is %v, want 0 or more", o.MaxServerWait)
	case o.MaxRetries < 0:
		return nil, fmt.Errorf("grpclimit: ClientOptions.MaxRetries is %d, want 0 or more", o.MaxRetries)
	case o.MaxKeys < 0:
		return nil, fmt.Errorf("grpclimit: ClientOptions.MaxKeys is %d, want 0 for %d, or more", o.MaxKeys, pace.DefaultMaxKeys)
	}
	if o.Key == nil {
		o.Key = target
	}
	if o.Cost == nil {
		o.Cost = func(c *ClientCall) int { return pace.DeclaredCost(c.Context()) }
	}
	c.pacer = pace.New("grpclimit", l, pace.Options[*ClientCall]{Cost: o.Cost, Units: pace.DeclaredCost, MaxWait: o.MaxWait, MaxKeys: o.MaxKeys, Longest: o.MaxServerWait})
	return c, nil
}

// Stats returns the counters. Each is exact; they are not read at one instant. Those of a
// zero Client are zero.
func (c *Client) Stats() httplimit.TransportStats {
	if !c.isMade() {
		return httplimit.TransportStats{}
	}
	return httplimit.TransportStats(c.pacer.Stats())
}

// Reset forgets what the server of a key has said: calls that wait for it are sent as the
// limiter allows. The key is what ClientOptions.Key returns for the server's calls, by
// default the connection's canonical target, such as "dns:///api.example.com:443". Answers to
// calls that are under way are obeyed when they come.
func (c *Client) Reset(key string) {
	if c.isMade() {
		c.pacer.Reset(key)
	}
}

func (c *Client) isMade() bool { return c != nil && c.pacer != nil }

func (c *Client) mustBeMade() {
	if !c.isMade() {
		panic("grpclimit: this Client was not made by NewClient: it has no limiter")
	}
}
