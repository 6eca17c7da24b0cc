package failures

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Ended reports whether a context has ended. On a busy machine its timer fires late: a
// limiter that compares times knows of the deadline before Err does.
func Ended(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// PanicText tells what a limiter panicked with, but not the text, which may hold a key: only a
// runtime error's is told.
func PanicText(p any) string {
	if e, ok := p.(runtime.Error); ok {
		return e.Error()
	}
	return fmt.Sprintf("a %T", p)
}

// Late marks a limiter that answers a caller whose deadline has passed, instead of failing: what has one embedded.
type Late struct{}

func (Late) answersLate() {}

// AnswersLate reports whether a limiter has a [Late] embedded.
func AnswersLate(limiter any) bool {
	_, ok := limiter.(interface{ answersLate() })
	return ok
}
