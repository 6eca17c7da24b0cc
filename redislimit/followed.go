package redislimit

import (
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/estimates"
)

// following are the scripts of calls that follow the spending of their keys, for requests of package policy whose rules notify: the others
// stay as short as they are.
var following = newFollowing(blocks{luaFiles})

type followingScripts struct{ decide, correct *script }

func newFollowing(b blocks) *followingScripts {
	return &followingScripts{
		decide: newScript("", b.lua("clock", "followed_keys"), "return (function()\n"+b.lua(library...)+b.lua("opens", "decide", "followed")+"end)()\n"),
		correct: newScript("", b.lua("clock", "followed_keys"), b.lua(library...), b.lua("opens", "followed_before"),
			"local reply = (function()\n"+b.lua("settle")+"end)()\n", b.lua("followed_after")),
	}
}

// sumSize and followedSize are the sizes of a key's part behind the reply of a decision, and of a correction.
const (
	sumSize      = 7
	followedSize = 2 + 7*7
)

// sumKeys returns the keys with the sums of open estimates behind the others. No limiter's key has such a separator before its first brace: see
// namespace.
func sumKeys(keys []string) []string {
	all := make([]string, 2*len(keys))
	copy(all, keys)
	for i, key := range keys {
		brace := strings.IndexByte(key, '{')
		separator := "+"
		if key[brace-1] == '#' {
			separator = "*"
		}
		all[len(keys)+i] = key[:brace-1] + separator + key[brace:]
	}
	return all
}

// sums takes the sums behind the reply of a decision off.
func (r *request) sums(reply string) (string, error) {
	size := sumSize * len(r.keys)
	if reply == "" || reply[0] > answerAllowed {
		return reply, nil
	}
	if len(reply) < size {
		return "", errAnswer
	}
	sums := reply[len(reply)-size:]
	r.opens = r.opens[:0]
	for i := range r.keys {
		r.opens = append(r.opens, get7(sums[sumSize*i:]))
	}
	return reply[:len(reply)-size], nil
}

// follow fills in the sums of a decision.
func (x *jointCall) follow(w *estimates.Watch) {
	for i, at := range x.at {
		if k := &w.Keys[i]; at >= 0 && k.Wanted && x.r.opens != nil && x.r.charges[at].plan.kind != kindHeld {
			k.Open = x.r.opens[x.r.charges[at].key]
		}
	}
}

// followed is the answer about one key of a correction.
type followed struct {
	known, gone          bool
	kind                 byte
	units, per           int64
	openBefore, open     int64
	before, after, reset int64
}

// followedOf returns the answers behind the reply of a correction, with its reading.
func followedOf(reply string, keys int) (reading int64, all []followed) {
	size := followedSize * keys
	if len(reply) < 8+size || reply[0] > answerAllowed {
		return 0, nil
	}
	reading, reply = get7(reply[1:]), reply[len(reply)-size:]
	for ; reply != ""; reply = reply[followedSize:] {
		all = append(all, followed{reply[0] == 1, reply[0] == 2, reply[1], get7(reply[2:]), get7(reply[9:]), get7(reply[16:]), get7(reply[23:]), get7(reply[30:]), get7(reply[37:]), get7(reply[44:])})
	}
	return reading, all
}

// fill fills in the answer about a charge's key, by the plan of the charge or the limiter. It leaves out a key that is under another limit,
// of which the figures do not show the capacity, or the calendar.
func (f *followed) fill(k *estimates.Key, reading int64, plans ...*plan) {
	if f.gone {
		k.Answered = true
		return
	}
	if !f.known {
		return
	}
	limit := ratelimit.Limit{}
	for _, p := range plans {
		switch {
		case p.kind != f.kind:
		case p.units == f.units && p.per == f.per:
			limit = p.limit
		case p.isBucket() || p.kind == kindCalendar && p.per != f.per:
		case limit.Algorithm == 0:
			limit = p.limit
			if limit.Rate.Units = clampInt(f.units); p.kind != kindCalendar {
				limit.Rate.Per = between(0, f.per)
			}
		}
	}
	if limit.Algorithm == 0 {
		return
	}
	capacity := int64(limit.Capacity())
	k.Answered, k.Before, k.OpenBefore, k.OpenAfter = true, f.before, f.openBefore, f.open
	k.After = ratelimit.Decision{
		Limit: limit, Remaining: clampInt(max(0, capacity-f.after)), Debt: clampInt(max(0, f.after-capacity)), ResetAfter: between(reading, f.reset),
	}
}
