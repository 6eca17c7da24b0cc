package meter

// Advance brings a state to now. Call it before Accept.
func (m *Meter) Advance(s *State, now int64) {
	if s.detail != nil || m.advances {
		m.advanceTo(s, now)
	}
}

func (m *Meter) advanceTo(s *State, now int64) {
	switch {
	case s.detail == nil || s.ledger == nil:
	default:
		if s.ledger.line != nil {
			if *s = m.serve(*s, now); s.detail == nil || s.ledger == nil {
				break
			}
		}
		if !m.log {
			*s = m.catchUp(*s, now)
		}
		*s = m.lapsed(m.tight(*s, now), now)
	}
	if m.advances {
		*s = m.advance(*s, now)
	}
}
