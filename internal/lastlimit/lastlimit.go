// Package lastlimit gives package policy access to the limit of a key's last decision by a limiter in memory.
package lastlimit

// Of returns the ratelimit.Limit of a *ratelimit.Keyed[string]'s last decision
// about a key, or nil if the key is not tracked. Package ratelimit sets it.
var Of func(keyed any, key string) (limit any)
