package httplimit

// Dialect is how limits are told in header fields. Go writes field names in its
// canonical form, such as Ratelimit-Policy; case does not matter in them.
type Dialect uint8

const (
	// DialectDraft11 is RateLimit-Policy and RateLimit as structured fields, of
	// draft-ietf-httpapi-ratelimit-headers-11 (and alike since -08). Each limit that
	// is known is a policy; RateLimit tells of the one that binds. Middleware inside
	// middleware adds its own items to the lists. If a name is used already, it
	// gets a number: "default-2". The older dialects have room for one limit: of nested
	// middlewares, the one that denies is told, or else the one that leaves the least.
	//
	// Known are the limits that the limiter lists, and the one that has decided. A key's
	// own plan ([ratelimit.Options].LimitFor) is known when it has decided. It is
	// listed in place of the limit of the same name, or of a zero Limit, by which a
	// limiter lists a limit that differs from key to key. A layer that was skipped is
	// listed too. A limit that was changed ([ratelimit.Keyed.SetLimit]) is listed with
	// its new figures once it has decided.
	//
	// The policy's q is the limit's capacity and w the seconds in which it is
	// regained, rounded up; of a sliding counter, its window. RateLimit's t is chosen so
	// that r per t invites no more than the rate: it is w; of a fixed window, what is left
	// of it; of a sliding counter, the time until the key is fresh, which is up to
	// 2·w, and at least w; and after a denial the wait. There is no RateLimit if it is
	// not known how much is left: a cost can never pass, or the layer that binds charges
	// a cost of its own ([ratelimit.WithCost]).
	DialectDraft11 Dialect = iota
	// DialectDraft06 is RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset
	// in seconds from now, of the drafts up to -06.
	DialectDraft06
	// DialectXEpoch is X-RateLimit-Limit, X-RateLimit-Remaining and
	// X-RateLimit-Reset in Unix seconds, as GitHub sends them.
	DialectXEpoch
	// DialectXDelta is the same with Reset in seconds from now, as Envoy sends them.
	DialectXDelta
	// DialectNone sends only Retry-After.
	DialectNone

	dialects = iota
)

// The names of the fields in the form that http.Header keeps them in.
const (
	fieldPolicy = "Ratelimit-Policy"
	fieldLimit  = "Ratelimit"
)

var legacyFields = [dialects][3]string{
	DialectDraft06: {"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"},
	DialectXEpoch:  {"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
	DialectXDelta:  {"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
}
