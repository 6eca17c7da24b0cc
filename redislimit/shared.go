package redislimit

// Several decisions of the same kind, each on one key, share a call. Each is decided independently.
// Running the call and reading the clock take Redis longer than a decision, and now happen only once.

// maxMembers is the maximum number of decisions in a call, because an index is a byte.
const maxMembers = 255

// sharing is the condition for keys to be in one call.
type sharing byte

const (
	shareAll  sharing = iota // all keys can be in one call
	shareSlot                // only keys of one slot can
	shareNode                // all keys can, but keys of several slots must not be declared
)

// gather returns the calls to send for a batch. Calls share one call if they can.
func gather(b *batch, s sharing) (sends []*call) {
	for _, c := range b.calls {
		if c.script.shared == nil || c.test != nil || len(c.payload) != headSize+chargeSize { // the data of calendars follows the requests
			sends = append(sends, c)
			continue
		}
		tag := ""
		if s != shareAll {
			tag = hashTag(c.keys[0])
		}
		shared := sharedFor(sends, c.script, tag, s)
		if shared == nil {
			n := len(b.calls)
			shared = &call{
				batch:   b,
				tag:     tag,
				script:  c.script.shared,
				payload: head(make([]byte, 0, headSize+chargeSize*n), opTake, 0),
				keys:    make([]string, 0, n),
				members: make([]*call, 0, n),
			}
			sends = append(sends, shared)
		}
		if shared.tag != tag {
			shared.script = c.script.across
		}
		shared.join(c)
	}
	for i, c := range sends {
		if len(c.members) == 1 {
			sends[i] = c.members[0]
		}
	}
	return sends
}

// sharedFor returns the shared call with room for a script's decision, or nil if there is none.
func sharedFor(sends []*call, sc *script, tag string, s sharing) *call {
	for _, c := range sends {
		if (c.script == sc.shared || c.script == sc.across) && (c.tag == tag || s == shareNode) && len(c.members) < maxMembers {
			return c
		}
	}
	return nil
}

// join adds a call's request on one key.
func (c *call) join(member *call) {
	at := len(c.payload)
	c.members = append(c.members, member)
	c.keys = append(c.keys, member.keys[0])
	c.payload = append(c.payload, member.payload[headSize:]...)
	c.payload[at] = byte(len(c.members))
}

// handOut distributes the replies to the members. It returns the members without
// a reply, because a command on their key has failed. They have charged nothing.
func (c *call) handOut() (undecided []*call) {
	answers, _ := c.reply.([]any)
	for i, m := range c.members {
		m.err = c.err
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
