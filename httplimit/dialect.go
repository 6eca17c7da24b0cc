package httplimit

// Dialect selects the header fields for limits. If a dialect has room for one limit, it describes
// the one with the longest denial. If none denies, it describes the one with the least remaining.
type Dialect uint8

const (
	// DialectDraft11 (draft-ietf-httpapi-ratelimit-headers-11) writes RateLimit-Policy, with all limits, and RateLimit,
	// with one. In them q is the capacity, and w the window or the seconds to regain the capacity; r is the remaining
	// budget. At most r may be used for t seconds. If r is 0, t is the time until the next unit, and after a denial the
	// time until a retry. In RateLimit-Policy, the parameter weir-refill reports that the budget comes back unit by
	// unit, instead of whole at a window's end. RateLimit is omitted if a cost can never pass, or if the binding layer
	// has its own cost. If outer middleware has used a name, a number is added to it, for example "default-2".
	DialectDraft11 Dialect = iota
	// DialectDraft06 writes RateLimit-Limit, -Remaining and -Reset, in seconds, for one limit. Reset
	// is the time until the budget is whole. If nothing remains, it is the time until the next unit,
	// and after a denial the time until a retry. The next two dialects have the same Reset.
	DialectDraft06
	// DialectXEpoch writes X-RateLimit-Limit, -Remaining and -Reset, in Unix seconds, as GitHub does.
	DialectXEpoch
	// DialectXDelta is like DialectXEpoch, with Reset in seconds from now, as Envoy sends it.
	DialectXDelta
	// DialectNone writes only Retry-After.
	DialectNone

	dialects = iota
)

// The draft in progress renames the parameters r and t, two constants of package limitfields. It also adds a field
// RateLimit-Partition for the budget's key, and a parameter c for the request's cost. This package sends neither.

// The fields' names, spelled as in http.Header.
const (
	fieldPolicy = "Ratelimit-Policy"
	fieldLimit  = "Ratelimit"
)

var legacyFields = [dialects][3]string{
	DialectDraft06: {"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"},
	DialectXEpoch:  {"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
	DialectXDelta:  {"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
}

// fieldNames are the names of a middleware's header fields on passing requests: up to
// three of its dialect, and Options.DegradedHeader. An empty name stands for no field.
type fieldNames struct {
	names [4]string
	lists bool // whether an inner middleware adds lines to the fields instead of replacing them
}

func fieldsOf(o *Options) *fieldNames {
	f := &fieldNames{lists: o.Dialect == DialectDraft11}
	if f.lists {
		f.names = [4]string{fieldPolicy, fieldLimit}
	} else {
		copy(f.names[:], legacyFields[o.Dialect][:])
	}
	f.names[3] = o.DegradedHeader
	return f
}
