package model

import (
	"time"
)

// The models' calendars. They use zones without steps at midnight. They find a window's
// beginning only with time.Date, and its end by adding days or months to its first date.

// dates are a calendar's windows. Their instants are Unix nanoseconds, as are the readings of a test's clock.
type dates struct{ Period }

func (d dates) open(t int64) int64    { return d.Begins(time.Unix(0, t).In(d.Location)).UnixNano() }
func (d dates) end(start int64) int64 { return d.Next(time.Unix(0, start).In(d.Location)).UnixNano() }
