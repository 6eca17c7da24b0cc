package model

import (
	"time"
)

// The models' calendars, for zones without steps at midnight. A window's beginning
// comes from time.Date, and its end from adding days or months to its first date.

// dates are a calendar's windows. Their instants are Unix nanoseconds, like the readings of a test's clock.
type dates struct{ Period }

func (d dates) open(t int64) int64    { return d.Begins(time.Unix(0, t).In(d.Location)).UnixNano() }
func (d dates) end(start int64) int64 { return d.Next(time.Unix(0, start).In(d.Location)).UnixNano() }
