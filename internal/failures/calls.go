package failures

import (
	"fmt"
	"runtime"
)

// PanicText describes the value of a limiter's panic by its type, because
// its text may contain a key. Only a runtime error is described by its text.
func PanicText(p any) string {
	if e, ok := p.(runtime.Error); ok {
		return e.Error()
	}
	return fmt.Sprintf("a %T", p)
}

// Late marks a limiter that embeds it. Such a limiter returns an
// answer to a caller whose deadline has passed, instead of an error.
type Late struct{}

func (Late) answersLate() {}

// AnswersLate reports whether a limiter embeds [Late].
func AnswersLate(limiter any) bool {
	_, ok := limiter.(interface{ answersLate() })
	return ok
}
