package model

import (
	"time"
)

// The models' calendars. They find a window by time.Date alone, on zones that have no steps at midnight, and its end by adding days or
// months to its first date.

// dates are a calendar's windows. Their instants are Unix nanoseconds, as a test's clock reads them.
type dates struct{ Period }

func (d dates) open(t int64) int64    { return d.Begins(time.Unix(0, t).In(d.Location)).UnixNano() }
func (d dates) end(start int64) int64 { return d.Next(time.Unix(0, start).In(d.Location)).UnixNano() }
