package grpclimit

import (
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/pace"
)

// ClientOptions configure [NewClient]. Zero values mean the defaults. Several goroutines may call the functions.
type ClientOptions struct {
	// Key names the queue for a call. Advice in one answer applies to all calls with the same key. It defaults to the target.
	Key func(c *Call) string

	// Cost returns a call's cost in the limiter. It defaults to the cost from [httplimit.WithCost], or otherwise 1.
	Cost func(c *Call) int

	// MaxWait bounds how long a call may wait. If a call would wait longer, it fails
	// at once with ResourceExhausted, [ratelimit.ErrLimited] and the wait. It defaults
	// to one minute. If negative, a call waits as long as its context allows.
	MaxWait time.Duration

	// MaxServerWait bounds a wait demanded by a server. It defaults to ten years.
	MaxServerWait time.Duration

	// MaxRetries is how often a refused unary call may be sent again. A call counts as refused
	// if it ended with RESOURCE_EXHAUSTED, a RetryInfo or pushback, and no headers. If a
	// handler works first and then answers so, it runs again. If zero, no call is sent again.
	MaxRetries int

	// MaxInFlight is how many of a key's calls may be in flight. A stream is in flight until it has
	// ended. A call takes its slot before its turn in the limiter: when slots come back after a
	// stall, the waiting calls are sent at the limiter's pace. If zero, any number may be in flight.
	MaxInFlight int

	// Inflight limits a key's calls in flight by its permits. A stream holds its permit until it has ended.
	// The limit may be adaptive ([inflight.Learn]); then the time until the turn counts as part of the call's
	// time. A call takes its permit before its turn in the limiter: when permits come back after a stall, the
	// waiting calls are sent at the limiter's pace. The wait for a permit counts as any other: see MaxWait.
	Inflight *inflight.Limiter[string]

	// Outcome returns a call's outcome for Inflight's adaptive limit, given the call's error. usual is the default outcome.
	// It is as in [InflightOptions], except that the context is the caller's. If nil, the default outcome is used.
	Outcome func(c *Call, err error, usual inflight.Outcome) inflight.Outcome

	// MaxKeys is for how many idle keys the Client keeps servers' advice. It defaults to 4096.
	MaxKeys int
}

// Client makes interceptors that obey the client's own limit and the servers' announced limits. Make
// one with [NewClient], and pass both interceptors to the connection. It is safe for concurrent use.
//
// Calls with one key wait in a queue. If a call's deadline is before its turn, it fails at once
// with DeadlineExceeded. A Client obeys RetryInfo and the trailer grpc-retry-pushback-ms of
// RESOURCE_EXHAUSTED and UNAVAILABLE, whichever is later. In any answer it obeys the same RateLimit
// and X-RateLimit fields as a [httplimit.Transport]. A refusal without a time delays no other call.
//
// After a refusal, calls are first sent one at a time. Each served call permits one more in flight, for a
// minute at most. Use either MaxRetries or a retry policy: a retry policy's attempts do not wait in the queue.
type Client struct {
	pacer   *pace.Pacer[*Call] // nil if there is only Inflight
	permits *edge.Permits      // nil if there is no Inflight
	opts    ClientOptions
}

// NewClient returns a Client that sends calls as the limiter allows. See [ratelimit.Map]; use [ratelimit.Unlimited] for
// the servers' limits alone. If the limiter is nil, ClientOptions.Inflight must be set. Then calls are sent as its
// permits allow. The Client reads no servers' announcements, and sends no call again. The error names the invalid option.
func NewClient(limiter ratelimit.Reserver[*Call], opts *ClientOptions) (*Client, error) {
	c := new(Client)
	if opts != nil {
		c.opts = *opts
	}
	o := &c.opts
	paced := limiter != nil || o.Inflight == nil
	if paced {
		if err := edge.Check("grpclimit", "NewClient", "call", limiter); err != nil {
			return nil, err
		}
	}
	switch {
	case !paced && (o.Cost != nil || o.MaxServerWait != 0 || o.MaxRetries != 0 || o.MaxInFlight != 0 || o.MaxKeys != 0):
		return nil, errors.New("grpclimit: without a limiter only Key, MaxWait, Inflight and Outcome of ClientOptions can be set: for the servers' limits alone give NewClient a limiter of ratelimit.Unlimited")
	case o.Outcome != nil && o.Inflight == nil:
		return nil, errors.New("grpclimit: ClientOptions.Outcome is for an adaptive limit, and Inflight is not set")
	}
	if err := pace.CheckOptions("grpclimit: ClientOptions", o.MaxServerWait, o.MaxRetries, o.MaxInFlight, o.MaxKeys); err != nil {
		return nil, err
	}
	if o.Key == nil {
		o.Key = target
	}
	if o.Inflight != nil {
		c.permits = edge.NewPermits("grpclimit", o.Inflight, pace.Bound(o.MaxWait))
	}
	if !paced {
		return c, nil
	}
	if o.Cost == nil {
		o.Cost = func(c *Call) int { return pace.DeclaredCost(c.Context()) }
	}
	c.pacer = pace.New("grpclimit", limiter, pace.Options[*Call]{Cost: o.Cost, Units: pace.DeclaredCost, MaxWait: pace.Bound(o.MaxWait), MaxKeys: o.MaxKeys, Longest: o.MaxServerWait, MaxInFlight: o.MaxInFlight})
	return c, nil
}

// Stats returns the counters.
func (c *Client) Stats() (s httplimit.TransportStats) {
	if c == nil {
		return s
	}
	if c.pacer != nil {
		s = httplimit.TransportStats(c.pacer.Stats())
	}
	if c.permits != nil {
		sent, failed, inFlight := c.permits.Counted()
		s.Sent, s.Failed, s.InFlight = s.Sent+sent, s.Failed+failed, s.InFlight+inFlight
	}
	return s
}

// Reset forgets what a key's server has announced. The key is a value from ClientOptions.Key, by default the target.
func (c *Client) Reset(key string) {
	if c != nil && c.pacer != nil {
		c.pacer.Reset(key)
	}
}

func (c *Client) isMade() bool { return c != nil && (c.pacer != nil || c.permits != nil) }

func (c *Client) mustBeMade() {
	if !c.isMade() {
		panic(optional.Zero("grpclimit", "Client", "NewClient"))
	}
}
