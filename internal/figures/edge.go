package figures

import "github.com/weir-go/ratelimit/httplimit"

// ofHTTP returns HTTP middleware's figures, and ofRPC the figures
// of interceptors for gRPC and Connect. read is the method Stats.
func ofHTTP(read func() httplimit.Stats) Group {
	return ofOutcomes(Figure{Name: "http.requests", Unit: "{request}", By: []string{"outcome"}, Help: "HTTP requests, by outcome."}, read)
}

// ofHTTPPermits returns the figures of middleware that limits requests in flight. Requests without room count as denied.
func ofHTTPPermits(read func() httplimit.InflightStats) Group {
	return ofHTTP(func() httplimit.Stats {
		s := read()
		return httplimit.Stats{Allowed: s.Admitted, Denied: s.Shed, Rejected: s.Rejected, Failed: s.Failed}
	})
}

func ofRPC(read func() httplimit.Stats) Group {
	return ofOutcomes(Figure{Name: "grpc.calls", Unit: "{call}", By: []string{"outcome"}, Help: "gRPC calls, and messages of streams, by outcome."}, read)
}

func ofOutcomes(f Figure, read func() httplimit.Stats) Group {
	return Group{Figures: []Figure{f}, Read: func(add func(int, float64, ...string)) {
		s := read()
		for o, n := range map[httplimit.Outcome]uint64{
			httplimit.OutcomeAllowed: s.Allowed, httplimit.OutcomeDenied: s.Denied, httplimit.OutcomeExceeds: s.Exceeds,
			httplimit.OutcomeRejected: s.Rejected, httplimit.OutcomeFailed: s.Failed, httplimit.OutcomeFailedOpen: s.FailedOpen,
		} {
			add(0, float64(n), o.String())
		}
	}}
}
