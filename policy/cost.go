package policy

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Cost is the cost of the requests that match: see [Rule.Costs].
type Cost struct {
	Match Match `yaml:"match" json:"match"`
	Cost  any   `yaml:"cost" json:"cost"` // as that of a Rule
}

// price is the cost of a rule. The zero price is that of the defaults, or else the caller's.
type price struct {
	Number    int    // a fixed cost, if above 0
	Attribute string // the attribute with the cost, a whole number from 0
	Caller    bool   // the caller's cost, even if the defaults have another
}

// priceOf returns the price that a field of a Rule holds, and an error if its value is none. See check for other errors.
func priceOf(cost any) (p price, err error) {
	switch v := cost.(type) {
	case nil:
	case int:
		p.Number = v
		if v == 0 {
			err = errNoPrice
		}
	case string:
		p.Attribute, p.Caller = v, v == ""
	default:
		err = fmt.Errorf("a value of type %T, want an int or a string: a number from 1, the name of an attribute, or \"\" for the caller's cost", v)
	}
	return p, err
}

// priceIn returns the price in a field of a rule that was checked.
func priceIn(cost any) price {
	p, _ := priceOf(cost)
	return p
}

// checkCost returns an error if a field that holds a cost is invalid.
func checkCost(cost any) error {
	p, err := priceOf(cost)
	if err != nil {
		return err
	}
	return p.check()
}

// value returns the price as a field of a Rule holds it.
func (p price) value() any {
	switch {
	case p.Number != 0:
		return p.Number
	case p.Attribute != "" || p.Caller:
		return p.Attribute
	}
	return nil
}

// own reports whether the cost is not the caller's.
func (p price) own() bool { return p.Number != 0 || p.Attribute != "" }

var errNoPrice = errors.New(`0, want at least 1, or the name of an attribute, or "" for the caller's cost`)

// check returns an error if the price is invalid.
func (p price) check() error {
	switch {
	case p.Number < 0:
		return fmt.Errorf("%d, want at least 1", p.Number)
	case p == price{}:
		return errNoPrice
	case p.Attribute != "" && strings.ContainsAny(p.Attribute[:1], "+-.0123456789"):
		return fmt.Errorf("%q, want a whole number from 1 to %d, in digits such as 1000", p.Attribute, math.MaxInt)
	case p.Attribute != "":
		return checkAttribute(p.Attribute)
	}
	return nil
}
