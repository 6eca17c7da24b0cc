package redislimit

// Several decisions of one kind, each on one key, share a call. Each is decided by itself, but the call and the clock, which
// take Redis longer than a decision, are there once.

// maxMembers is how many decisions share a call at most: an index is a byte.
const maxMembers = 255

// sharing says which keys can be in one call.
type sharing byte

const (
	shareAll  sharing = iota // all
	shareSlot                // those of one slot
	shareNode                // all, but those of several slots must not be declared
)

// gather returns the tickets to send for a batch: those that can share a call do.
func gather(b *batch, s sharing) (sends []*ticket) {
	for _, t := range b.tickets {
		if t.script.shared == nil || t.test != nil {
			sends = append(sends, t)
			continue
		}
		tag := ""
		if s != shareAll {
			tag = hashTag(t.keys[0])
		}
		shared := sharedFor(sends, t.script, tag, s)
		if shared == nil {
			n := len(b.tickets)
			shared = &ticket{
				batch:   b,
				tag:     tag,
				script:  t.script.shared,
				payload: head(make([]byte, 0, headSize+askSize*n), opTake, 0),
				keys:    make([]string, 0, n),
				members: make([]*ticket, 0, n),
			}
			sends = append(sends, shared)
		}
		if shared.tag != tag {
			shared.script = t.script.across
		}
		shared.join(t)
	}
	for i, t := range sends {
		if len(t.members) == 1 {
			sends[i] = t.members[0]
		}
	}
	return sends
}

// sharedFor returns the shared call that has room for what a script decides, nil if there is none.
func sharedFor(sends []*ticket, sc *script, tag string, s sharing) *ticket {
	for _, t := range sends {
		if (t.script == sc.shared || t.script == sc.across) && (t.tag == tag || s == shareNode) && len(t.members) < maxMembers {
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

// handOut gives the members their answers. It returns those that have none, because a command on their key has
// failed. They have charged nothing.
func (t *ticket) handOut() (undecided []*ticket) {
	answers, _ := t.reply.([]any)
	for i, m := range t.members {
		m.err = t.err
		if i >= len(answers) {
			continue
		}
		if text, _ := answers[i].(string); text == "" || text[0] == answerOther {
			undecided = append(undecided, m)
		}
		m.reply = answers[i]
	}
	return undecided
}
