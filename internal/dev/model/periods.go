package model

import (
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
)

// Period is a calendar period of a model.
type Period struct {
	ratelimit.Period
	Location *time.Location
	Begins   func(at time.Time) time.Time // the beginning of the window around an instant
	Next     func(from time.Time) time.Time
}

func Zone(name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	return loc
}

func midnight(y int, m time.Month, d int, loc *time.Location) time.Time {
	return time.Date(y, m, d, 0, 0, 0, 0, loc)
}

func modelDay(name string) Period {
	loc := Zone(name)
	begins := func(at time.Time) time.Time {
		y, m, d := at.Date()
		return midnight(y, m, d, loc)
	}
	return Period{ratelimit.Day(name), loc, begins, func(from time.Time) time.Time { return from.AddDate(0, 0, 1) }}
}

func modelWeek(name string, first time.Weekday) Period {
	loc := Zone(name)
	begins := func(at time.Time) time.Time {
		for at.Weekday() != first {
			at = at.AddDate(0, 0, -1)
		}
		y, m, d := at.Date()
		return midnight(y, m, d, loc)
	}
	return Period{ratelimit.Week(name, first), loc, begins, func(from time.Time) time.Time { return from.AddDate(0, 0, 7) }}
}

func modelMonth(name string, first int) Period {
	loc := Zone(name)
	of := func(y int, m time.Month) time.Time {
		last := midnight(y, m+1, 0, loc).Day()
		return midnight(y, m, min(first, last), loc)
	}
	begins := func(at time.Time) time.Time {
		y, m, _ := at.Date()
		if from := of(y, m); !from.After(at) {
			return from
		}
		return of(y, m-1)
	}
	return Period{ratelimit.Month(name, first), loc, begins, func(from time.Time) time.Time { return of(from.Year(), from.Month()+1) }}
}

// modelClock returns a period of hours or minutes in a zone whose clock changes by whole hours.
func modelClock(p ratelimit.Period, name string, length time.Duration) Period {
	loc := Zone(name)
	begins := func(at time.Time) time.Time {
		passed := time.Duration(at.Minute())*time.Minute + time.Duration(at.Second())*time.Second + time.Duration(at.Nanosecond())
		return at.Add(-(passed % length))
	}
	return Period{p, loc, begins, func(from time.Time) time.Time { return from.Add(length) }}
}

var Periods = []Period{
	modelClock(ratelimit.Hour("UTC"), "UTC", time.Hour), modelClock(ratelimit.Hour("America/New_York"), "America/New_York", time.Hour),
	modelClock(ratelimit.Minute("Asia/Kolkata"), "Asia/Kolkata", time.Minute),
	modelDay("UTC"), modelDay("America/New_York"), modelWeek("America/New_York", time.Monday), modelWeek("UTC", time.Sunday),
	modelMonth("UTC", 1), modelMonth("America/New_York", 31), modelMonth("UTC", 15),
}

func PeriodOf(p ratelimit.Period) Period {
	for _, m := range Periods {
		if m.Period == p {
			return m
		}
	}
	panic("no model of " + p.String())
}

// Span returns the length of a limit's windows. For months it is approximate.
func Span(l ratelimit.Limit) time.Duration {
	if l.Algorithm == ratelimit.AlgorithmCalendar {
		const day = 24 * time.Hour
		return map[string]time.Duration{"minute": time.Minute, "hour": time.Hour, "day": day, "week": 7 * day, "month": 31 * day}[strings.Fields(l.Period.String())[0]]
	}
	return l.Rate.Per
}
