package inflight

// config holds the results of the functions in [Options] for a key.
type config struct {
	limit    int // 0 means the limiter's own; if negative, the key is blocked
	weight   int
	priority int
	number   uint64 // the number of the call of these functions: an older result never replaces a newer one
}

// bound returns the upper bound of the key's limit. Base is the limiter's own limit.
func (c config) bound(base int) int {
	switch {
	case c.limit < 0:
		return 0
	case c.limit == 0:
		return base
	}
	return c.limit
}
