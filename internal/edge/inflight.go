package edge

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
	"github.com/weir-go/ratelimit/internal/wait"
)

// InflightOptions are the options of all middlewares.
type InflightOptions[R Request] struct {
	Package string        // the prefix of errors
	Thing   string        // the word for a request in errors
	Units   func(R) int   // if nil, each request takes 1 unit
	Skip    func(R) bool  // if nil, no request is skipped
	MaxWait time.Duration // if 0, a request waits as long as its context allows
	Judges  bool          // whether a function of the user determines outcomes
}

// Inflight admits requests while there is room. It is safe for concurrent use.
type Inflight[R Request, K comparable] struct {
	InflightOptions[R]
	Learns bool // whether outcomes are needed, by an adaptive limit or a function of the user

	limiter *inflight.Limiter[K]
	key     func(R) (K, error)

	skipped, admitted, shed, exceeds, failed, rejected atomic.Uint64
}

// NewInflight returns an Inflight, or an error for arguments that can only be a mistake.
func NewInflight[R Request, K comparable](l *inflight.Limiter[K], key func(R) (K, error), o InflightOptions[R]) (*Inflight[R, K], error) {
	switch {
	case l == nil:
		return nil, optional.Nil(o.Package + ": NewInflight: l")
	case key == nil:
		return nil, optional.Nil(o.Package + ": NewInflight: key")
	case isWhole[R](l):
		return nil, wholeKey(o.Package, o.Thing, "give a key function that distinguishes clients, such as RemoteIP")
	}
	if err := optional.NotNegative(o.Package+": InflightOptions.MaxWait", o.MaxWait, "none"); err != nil {
		return nil, err
	}
	return &Inflight[R, K]{InflightOptions: o, Learns: o.Judges || l.Totals().Adaptive, limiter: l, key: key}, nil
}

func isWhole[R Request](limiter any) bool {
	_, ok := limiter.(*inflight.Limiter[R])
	return ok
}

// InflightStats are httplimit.InflightStats.
type InflightStats struct{ Skipped, Admitted, Shed, Failed, Rejected uint64 }

// Stats returns the counters. Each is exact; they are not read at one instant.
func (i *Inflight[R, K]) Stats() InflightStats {
	s := i.Counts()
	return InflightStats{Skipped: s.Skipped, Admitted: s.Allowed, Shed: s.Denied, Failed: s.Failed + s.Exceeds, Rejected: s.Rejected}
}

// Counts returns the counters as a Core does: requests without room are denied.
func (i *Inflight[R, K]) Counts() Stats {
	return Stats{Skipped: i.skipped.Load(), Allowed: i.admitted.Load(), Denied: i.shed.Load(), Exceeds: i.exceeds.Load(), Rejected: i.rejected.Load(), Failed: i.failed.Load()}
}

// Refusal is why a request got no permit. The zero Refusal is not a refusal.
type Refusal struct {
	Err   error
	Cause outcome.Cause
	Wait  time.Duration // for CauseLimited, CauseGone and CauseTableFull: the recent wait of served requests
}

// ByClient reports whether clients can cause the refusal, by too many
// keys or a negative cost. A lack of room is not one client's fault.
func (r Refusal) ByClient() bool {
	return r.Cause == outcome.CauseTableFull || r.Cause == outcome.CauseCost
}

// Answer returns the answer to a call without a permit. ctx is the call's context.
func (r Refusal) Answer(ctx context.Context, keyCode rpcstatus.Code) rpcstatus.Answer {
	switch r.Cause {
	case outcome.CauseGone:
		return rpcstatus.Gone(ctx)
	case outcome.CauseLimited, outcome.CauseTableFull:
		return rpcstatus.NoRoom(r.Wait)
	case outcome.CauseExceeds:
		return rpcstatus.TooLarge
	case outcome.CauseBlocked:
		return rpcstatus.Blocked
	case outcome.CauseKey:
		return rpcstatus.BadKey(keyCode)
	}
	return rpcstatus.Undecidable
}

// Admit waits for a permit. A request exempted by Skip or its key function gets an empty
// permit, and watched is false. An adaptive limit must not learn from such a request.
func (i *Inflight[R, K]) Admit(r R) (permit inflight.Permit, watched bool, why Refusal) {
	if i.Skip != nil && i.Skip(r) {
		i.skipped.Add(1)
		return permit, false, why
	}
	key, err := i.key(r)
	called := err == nil
	if called {
		permit, err = i.acquire(r, key)
	}
	switch {
	case err == nil:
		i.admitted.Add(1)
		return permit, true, why
	case errors.Is(err, ratelimit.SkipLayer):
		i.skipped.Add(1)
		return permit, false, why
	}
	return permit, false, i.refuse(r, key, err, called)
}

func (i *Inflight[R, K]) acquire(r R, key K) (inflight.Permit, error) {
	ctx, units := r.Context(), 1
	if i.Units != nil {
		units = i.Units(r)
	}
	if i.MaxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = wait.Within(ctx, i.MaxWait)
		defer cancel()
	}
	return i.limiter.Acquire(ctx, key, units)
}

// refuse counts a refusal and returns it. called states whether
// err is the limiter's error; otherwise it is the key function's.
func (i *Inflight[R, K]) refuse(r R, key K, err error, called bool) Refusal {
	outcome.MarkRefused(r.Context())
	why, count := Refusal{Err: err, Cause: causeOf(r, err, called)}, &i.failed
	MarkRefused(r.Context(), why.Cause)
	switch why.Cause {
	case outcome.CauseLimited, outcome.CauseGone:
		count = &i.shed
		fallthrough
	case outcome.CauseTableFull:
		stats, _ := i.limiter.Stats(key)
		why.Wait = stats.Wait
	case outcome.CauseExceeds, outcome.CauseBlocked:
		count = &i.exceeds
	case outcome.CauseKey:
		count = &i.rejected
	}
	count.Add(1)
	return why
}

// causeOf returns a refusal's cause. If a call to the limiter has waited for MaxWait, the cause is a lack of room.
func causeOf[R Request](r R, err error, called bool) outcome.Cause {
	cause := outcome.CauseOf(err)
	switch {
	case r.Context().Err() != nil:
		return outcome.CauseGone
	case cause == outcome.CauseEnded && called:
		return outcome.CauseLimited
	case cause == outcome.CauseLimited && !called:
		return outcome.CauseOther
	}
	return cause
}

// HelperServices are the gRPC services of health checks and reflection. Each
// client may keep a stream to them open, and such a stream is not load.
var HelperServices = []string{"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
