package meter

// rest holds the units set aside by a lowered limit, and the instant when their former limit would have regained them.
type rest struct {
	units, until int64

	log *older // set if the former limit was a sliding log, too; otherwise nil
}

// older is the rest of a log: entries that no longer count, all before the counted ones. They keep their
// instants. So, however often the limit changes, they can count again until they would have lapsed.
type older struct {
	totals
	per int64 // the longest window of their former logs: each lapses that long after its instant
}

// alive returns a log's rest without lapsed entries. It shares memory with r.
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

// restOf returns the rest for a log's entries.
func restOf(o older, now int64) rest {
	r := rest{units: o.sum(o.len()), until: Add(o.newest(), o.per), log: &o}
	return r.alive(now)
}

// reduce subtracts n from the units. An empty rest has no instant, because the instant would delay the next rest.
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

// put adds an entry behind all others. The entry does not lapse before the instant until.
func (o *older) put(at, cost, until int64) {
	at = max(at, o.newest())
	o.add(at, cost)
	o.per = max(o.per, until-at)
}

// lost counts the units that passed while the state was a full former one and did not count them. It
// keeps them until the state has regained its counted units. A settlement takes from these units first.
type lost struct {
	units, until int64
	over         int64 // the regained part of units: it does not count again when the limit is raised
}
