package failures

import (
	"fmt"
	"runtime"
)

// PanicText describes the value of a limiter's panic by its type, since its text may contain a key. Only the text of a
// runtime error is included.
func PanicText(p any) string {
	if e, ok := p.(runtime.Error); ok {
		return e.Error()
	}
	return fmt.Sprintf("a %T", p)
}

// Late, when embedded, marks a limiter that answers a caller whose deadline has passed, instead of failing.
type Late struct{}

func (Late) answersLate() {}

// AnswersLate reports whether a limiter has a [Late] embedded.
func AnswersLate(limiter any) bool {
	_, ok := limiter.(interface{ answersLate() })
	return ok
}
