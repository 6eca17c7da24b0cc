package meter

// rest holds the units that a lowered limit has set aside, and the
// instant at which their former limit would have regained them.
type rest struct {
	units, until int64

	log *older // of a log that was a log before; else nil
}

// older is a log's rest: the entries before those that count. They keep their instants, so that they count as long as they would
// have, however often the limit changes. None of them is newer than an entry that counts.
type older struct {
	totals
	per int64 // the longest window of the logs that they counted under: each lapses that long after its instant
}

// alive returns the rest of a log without the entries that have lapsed by now. It shares memory with the given one.
func (r rest) alive(now int64) rest {
	if r.until <= now {
		return rest{}
	}
	if r.log == nil || r.log.mark(0).at > now-r.log.per {
		return r
	}
	o := *r.log
	r.units -= o.popFront(o.search(now - o.per + 1))
	r.log = &o
	return r
}

// restOf returns the rest that consists of entries.
func restOf(o older, now int64) rest {
	r := rest{units: o.sum(o.len()), until: Add(o.newest(), o.per), log: &o}
	return r.alive(now)
}

// reduce takes n off the units. An empty rest has no instant, which would delay the next one's.
func (r *rest) reduce(n int64) {
	if r.log != nil {
		r.log.reduceNewest(n)
	}
	r.less(n)
}

func (r *rest) less(n int64) {
	if r.units -= n; r.units == 0 {
		*r = rest{}
	} else if r.log != nil {
		r.until = Add(r.log.newest(), r.log.per)
	}
}

// put adds an entry behind all others that does not lapse before an instant.
func (o *older) put(at, cost, until int64) {
	at = max(at, o.newest())
	o.add(at, cost)
	o.per = max(o.per, until-at)
}

// lost has the units that passed while the state was a former one and full. It keeps them until the state has regained
// the units that it counts. A settlement takes from them first.
type lost struct {
	units, until int64
	over         int64 // the part of units that is regained, and that a raised limit does not count again
}
