// Package lastlimit lets package policy ask a limiter in memory under which limit a key was decided last.
package lastlimit

// Of returns the ratelimit.Limit of the last decision about a key of a *ratelimit.Keyed[string], nil if the key is not tracked. Package
// ratelimit sets it.
var Of func(keyed any, key string) (limit any)
