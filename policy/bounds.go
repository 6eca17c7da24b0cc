package policy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit"
)

// A set's bounds. A larger file is a mistake, or an attack on the program loading it. The
// time to put a set in force grows with its size, for example to 0.1 s for 10,000 rules.
const (
	maxRules   = 10_000
	maxName    = 128
	maxVersion = 256
	maxText    = 1024 // the characters of a description, a value or a route
	maxList    = 10_000
	maxPercent = 100 // per cent of a limit
	maxWeight  = 1 << 20
	maxPlaces  = 1000 // the index's places for a request's routes; this many take about 20 µs
)

// maxProblems is the maximum number of errors returned at once.
const maxProblems = 100

// maxSize is the maximum number of bytes in a policy file.
const maxSize = 4 << 20

// checkName returns an error if a name cannot be a limit's. Header fields and metrics must be able to contain it.
func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%d bytes, want 1 to %d", len(name), maxName)
	}
	if err := ratelimit.Unlimited().Named(name).Validate(); err != nil {
		return fmt.Errorf("%q, want a letter, then letters, digits, _ and -", name)
	}
	return nil
}

func checkText(s string) error {
	if len(s) > maxText {
		return fmt.Errorf("%d bytes, want at most %d", len(s), maxText)
	}
	return nil
}

// checkWeight returns an error if a number is not a valid weight.
func checkWeight(weight int) error {
	if weight < 1 || weight > maxWeight {
		return fmt.Errorf("%d, want a weight from 1 to %d", weight, maxWeight)
	}
	return nil
}

// percentOf parses a percentage, such as 80%.
func percentOf(text string) (int, error) {
	digits, ok := strings.CutSuffix(text, "%")
	if n, err := strconv.Atoi(digits); ok && err == nil && 1 <= n && n <= maxPercent && digits == strconv.Itoa(n) {
		return n, nil
	}
	return 0, fmt.Errorf("%q, want 1%% to %d%%", text, maxPercent)
}
