package inflight

// config holds the functions' results in [Options] for a key.
type config struct {
	limit    int // 0 means the limiter's own limit; if negative, the key is blocked
	weight   int
	priority int
	number   uint64 // the number of the call to these functions; an older call's result never replaces a newer one
}

// bound returns the upper bound of the key's limit. base is the limiter's own limit.
func (c config) bound(base int) int {
	switch {
	case c.limit < 0:
		return 0
	case c.limit == 0:
		return base
	}
	return c.limit
}
