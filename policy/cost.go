package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Cost is what a rule charges. In a file it is a number, an attribute's name, or ""
// for Caller. The zero Cost selects the defaults' cost, or otherwise the caller's.
type Cost struct {
	Number    int    // a fixed cost, if positive
	Attribute string // the attribute with the cost, a whole number from 0
	Caller    bool   // the caller's cost, even if the defaults have another

	// Match selects the requests for a cost in [Rule.Costs]. A file
	// writes it as {match: …, cost: …}. In any other Cost it is nil.
	Match *Match
}

// own reports whether the cost is not the caller's.
func (c Cost) own() bool { return c.Number != 0 || c.Attribute != "" }

// text returns the cost as a file writes it: "" for the caller's.
func (c Cost) text() string {
	if c.Number != 0 {
		return strconv.Itoa(c.Number)
	}
	return c.Attribute
}

// matched is a cost in [Rule.Costs] as a file writes it.
type matched struct {
	Match *Match `yaml:"match" json:"match"`
	Cost  Cost   `yaml:"cost" json:"cost"`
}

// alone returns the cost without its Match.
func (c Cost) alone() Cost {
	c.Match = nil
	return c
}

// MarshalJSON returns the cost as a file writes it, and null for the zero Cost.
func (c Cost) MarshalJSON() ([]byte, error) {
	switch {
	case c.Match != nil:
		return json.Marshal(matched{c.Match, c.alone()})
	case c.Number != 0:
		return json.Marshal(c.Number)
	case c.Attribute != "" || c.Caller:
		return json.Marshal(c.Attribute)
	}
	return []byte("null"), nil
}

// check returns an error if the cost is invalid.
func (c Cost) check() error {
	switch {
	case c.Number != 0 && c.Attribute != "":
		return fmt.Errorf("both the number %d and the attribute %q", c.Number, c.Attribute)
	case c.Caller && c.own():
		return fmt.Errorf("both the caller's and %s", c.text())
	case c.Number < 0:
		return fmt.Errorf("%d, want at least 1", c.Number)
	case c == Cost{}:
		return errors.New(`0, want at least 1, or the name of an attribute, or "" for the caller's cost`)
	case c.Attribute != "" && strings.ContainsAny(c.Attribute[:1], "+-.0123456789"):
		return fmt.Errorf("%q, want a whole number from 1 to %d, in digits such as 1000", c.Attribute, math.MaxInt)
	case c.Attribute != "":
		return checkAttribute(c.Attribute)
	}
	return nil
}
