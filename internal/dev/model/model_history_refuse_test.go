package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weir-go/ratelimit"
)

// A table with RefuseNew drops only fresh keys, and this changes no answer. So the models know all
// keys, and whether there is room. Only a new key needs room, and only keys with spending take it.

// refusal checks a call that may need room for its key. It reports
// whether the table refused the key. A refused call changes nothing.
func (w *world) refusal(m move, got answer) (text string, refused bool) {
	if !w.needsRoom(m) {
		return "", false
	}
	err := got.err
	if m.kind == opAllow && !got.d.Allowed {
		switch j := w.judge(m.key); w.standing(m.key, m.raw) {
		case isSpent:
			return "", false
		case isUnknown:
			if j.blurry || j.limit.Named("") != w.now.Named("") {
				return "", false
			} // otherwise the key is fresh under its limit, and may have left the table
		}
		err = ratelimit.ErrTableFull // only a full table denies a fresh key
	}
	if text, refused = w.full(m.raw, []string{m.key}, err); refused && m.kind == opSettle {
		w.judge(m.key).made[m.id].settled = true // only the first settlement counts
	}
	return text, refused
}

// needsRoom reports whether the call would insert its key.
func (w *world) needsRoom(m move) bool {
	switch m.kind {
	case opTake, opAllow, opReserve, opWait:
		return m.n > 0 && m.n <= w.now.Capacity()
	case opAdjust:
		return m.n > 0
	case opSettle:
		r := w.judge(m.key).made[m.id]
		return r != nil && r.free && !r.settled && m.n > 0
	}
	return false
}

// full checks the error of a call that needs room for all its keys. If
// the call was not refused, other fresh keys may have left the table.
func (w *world) full(raw int64, keys []string, err error) (text string, refused bool) {
	for _, key := range keys {
		if w.standing(key, raw) == isSpent && len(keys) == 1 {
			return "", false // the key is in the table, and needs no room
		}
	}
	least, most := len(keys), len(keys)
	for _, key := range w.names() {
		switch s := w.standing(key, raw); {
		case slices.Contains(keys, key) || s == isFresh:
		case s == isSpent:
			least, most = least+1, most+1
		default:
			most++
		}
	}
	switch refused = errors.Is(err, ratelimit.ErrTableFull); {
	case refused && most <= w.max:
		return fmt.Sprintf("%v, but %d keys that are not fresh leave room for %d more", err, most-len(keys), len(keys)), true
	case !refused && least > w.max:
		return fmt.Sprintf("got: %v\nwant: %v", err, ratelimit.ErrTableFull), false
	case !refused:
		w.forgetReceipts(keys)
	}
	return "", refused
}

// keyStanding states whether a model's key is fresh.
type keyStanding int

const (
	isFresh keyStanding = iota
	isSpent
	isUnknown
)

// standing returns whether a key is fresh under its own limit. This may be older than the limit in force.
func (w *world) standing(key string, raw int64) keyStanding {
	switch j := w.judges[key]; {
	case j == nil || !j.known && !j.blurry:
		return isFresh
	case j.blurry:
		return isUnknown
	case j.all().reset(j.at(raw)) > raw || j.aside.units > 0 && j.aside.until > raw:
		return isSpent
	case j.outlives(raw):
		return isUnknown
	}
	return isFresh
}

func (w *world) names() (all []string) {
	for i := range w.keys {
		all = append(all, string(rune('a'+i)))
	}
	return all
}

// forgetReceipts drops the reservations of all other keys that may be fresh. If such a key
// has left the table, its reservations have no effect. The models cannot know whether it has.
func (w *world) forgetReceipts(keys []string) {
	for key, j := range w.judges {
		if !w.refuse || slices.Contains(keys, key) || w.standing(key, w.clock.now.Load()) == isSpent {
			continue
		}
		for id, r := range j.made {
			if r != nil && !r.free {
				delete(j.made, id)
			}
		}
	}
}

// outlives reports whether a log may have spending counted only by an earlier, longer
// window. After a raise of the limit it counts again, so the table may keep the key.
func (m *model) outlives(now int64) bool {
	log, ok := m.base.(*modelLog)
	return ok && log.until > now
}
