package httplimit

// Dialect is how limits are told in header fields:
//
//	dialect  fields                                 reset in      limits told
//	Draft11  RateLimit-Policy, RateLimit            seconds       all that are known
//	Draft06  RateLimit-Limit, -Remaining, -Reset    seconds       the one that binds
//	XEpoch   X-RateLimit-Limit, -Remaining, -Reset  Unix seconds  the one that binds
//	XDelta   X-RateLimit-Limit, -Remaining, -Reset  seconds       the one that binds
//	None     only Retry-After                       seconds       none
//
// RateLimit tells of one limit, the quota that is nearest, and RateLimit-Policy lists all of them, always in the same
// order. So the name in RateLimit changes from one response to the next whenever another limit begins to leave
// less: a client should keep apart what it is told under each name.
//
// The limit that binds is, after a denial, the one with the longest wait (of a chain, the first that denies), else the one that leaves
// the least. Of nested middlewares, one that denies binds before one that allows. Go writes field
// names in its canonical form, such as Ratelimit-Policy; case does not matter in them.
type Dialect uint8

const (
	// DialectDraft11 is that of draft-ietf-httpapi-ratelimit-headers-11, and of those since 08. The
	// fields are structured:
	//
	//	RateLimit-Policy  q  the limit's capacity
	//	                  w  the seconds in which it is regained, rounded up; its window; of a
	//	                     calendar, how long the present window is, by this machine's clock
	//	RateLimit         r  how much is left
	//	                  t  after a denial, the wait; of a fixed window or a calendar, what is left of it; of a
	//	                     sliding counter, the time until the key is fresh, and at least w; else w
	//
	// The draft in progress calls r and t a and w, and has a field RateLimit-Partition and a parameter c, the cost of the
	// request. A [Transport] reads a and w.
	//
	// So r in t seconds never invites more than the rate. There is no RateLimit if it is not known
	// how much is left: a cost can never pass, or the layer that binds has a cost of its own
	// ([ratelimit.WithCost]).
	//
	// Policies are told for the limits that the limiter lists, and for the one that has decided. A
	// key's own limit ([ratelimit.Options].LimitFor), or one that was changed
	// ([ratelimit.Keyed.SetLimit]), is known once it has decided: it takes the place of the limit of
	// that name, or of a zero Limit in the list. Layers that were skipped are listed too. Middleware
	// inside middleware adds its own items; a name that is used already gets a number: "default-2".
	DialectDraft11 Dialect = iota
	// DialectDraft06 is that of the drafts up to 06.
	DialectDraft06
	// DialectXEpoch is that of GitHub.
	DialectXEpoch
	// DialectXDelta is that of Envoy.
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
