package meter

// fold returns the base with all bookings spent on top. The ledger stays with the state as
// long as it has bookings. If the ledger's entries have runs, fold uses what it remembers
// of them, and takes O(log n) for each booking that has changed.
func (m *Meter) fold(l *ledger) State {
	s := l.base
	for i := 0; i < l.entries.len(); {
		level := l.entries.longest(i, l.entries.len())
		s = m.replayRun(l, s, i, level)
		i += runSize(level)
	}
	if l.entries.len() > 0 {
		s.detail = &detail{ledger: l}
	}
	return s
}

// replayRun spends the run of bookings of that level that begins with the i-th. What is
// remembered of a run holds for one plan only. A ledger keeps the plan that made it:
// carry makes a new one for another.
func (m *Meter) replayRun(l *ledger, s State, i, level int) State {
	if level == 0 {
		return m.replay(s, l.get(i))
	}
	if t := m.drain(); t != nil {
		return t.pour(s, m.flowOf(t, l, i, level))
	}
	run := l.entries.run(i, level)
	if run.known && run.sum.in == s {
		return run.sum.out
	}
	in := s
	for end := i + runSize(level); i < end; i += runSize(level - 1) {
		s = m.replayRun(l, s, i, level-1)
	}
	run.sum.in, run.sum.out, run.known = in, s, true
	return s
}

// flowOf returns the flow of the run of bookings of that level that begins with the i-th.
func (m *Meter) flowOf(t *tokenBucket, l *ledger, i, level int) (f flow) {
	if level == 0 {
		return m.flowOne(t, l.get(i))
	}
	run := l.entries.run(i, level)
	if !run.known {
		for end := i + runSize(level); i < end; i += runSize(level - 1) {
			f = t.then(f, m.flowOf(t, l, i, level-1))
		}
		run.sum.flow, run.known = f, true
	}
	return run.sum.flow
}

// flowOne returns the flow of one booking. A leaky bucket spends it at its place in the
// queue, which may be a fraction before its instant.
func (m *Meter) flowOne(t *tokenBucket, sp Spending) flow {
	switch {
	case sp.Cost == 0:
		return flow{}
	case m.leaky != nil:
		return t.flow(sp.begin(), sp)
	}
	return t.flow(span{ticks: sp.At}, sp)
}

// replay spends a booking on top of those before it. One that was given back has a cost
// of 0 and leaves no trace, not even in a window's phase.
func (m *Meter) replay(s State, sp Spending) State {
	if sp.Cost == 0 {
		return s
	}
	if m.leaky != nil {
		return m.leaky.replay(s, sp)
	}
	return m.spend(s, sp.At, sp.Cost)
}
