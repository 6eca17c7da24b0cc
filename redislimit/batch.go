package redislimit

// A batch is several decisions of one kind, each on one key, in one call of a script. Each is
// decided by itself, but the call and the clock, which take Redis longer than a decision,
// are there once.

// maxMembers is how many decisions share a call at most: an index is a byte.
const maxMembers = 255

// gather returns the tickets to send for a trip: those that can share a call do. Where the server has
// slots, that are those of one hash tag.
func gather(p *trip, slots bool) (sends []*ticket) {
	for _, t := range p.tickets {
		if t.script.batch == nil || t.test != nil {
			sends = append(sends, t)
			continue
		}
		tag := ""
		if slots {
			tag = hashTag(t.keys[0])
		}
		b := batchFor(sends, t.script.batch, tag)
		if b == nil {
			n := len(p.tickets)
			b = &ticket{
				trip:    p,
				tag:     tag,
				script:  t.script.batch,
				payload: head(make([]byte, 0, headSize+askSize*n), opTake, 0),
				keys:    make([]string, 0, n),
				members: make([]*ticket, 0, n),
			}
			sends = append(sends, b)
		}
		b.join(t)
	}
	for i, t := range sends {
		if len(t.members) == 1 {
			sends[i] = t.members[0]
		}
	}
	return sends
}

// batchFor returns the batch that has room, nil if there is none.
func batchFor(sends []*ticket, sc *script, tag string) *ticket {
	for _, t := range sends {
		if t.script == sc && t.tag == tag && len(t.members) < maxMembers {
			return t
		}
	}
	return nil
}

// join adds what a ticket asks on its one key.
func (t *ticket) join(member *ticket) {
	at := len(t.payload)
	t.members = append(t.members, member)
	t.keys = append(t.keys, member.keys[0])
	t.payload = append(t.payload, member.payload[headSize:]...)
	t.payload[at] = byte(len(t.members))
}

// handOut gives the members their answers.
func (t *ticket) handOut() {
	answers, _ := t.reply.([]any)
	for i, m := range t.members {
		m.err = t.err
		if i < len(answers) {
			m.reply = answers[i]
		}
	}
}
