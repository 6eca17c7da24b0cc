package ratelimit

import (
	"errors"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/internal/calendar"
)

// perUnits are the spans with a letter in a rate's text form.
var perUnits = []struct {
	text string
	per  time.Duration
}{
	{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour},
}

// String returns the rate as [ParseLimit] reads it: "100/s", "7/11s".
func (r Rate) String() string {
	for _, u := range perUnits {
		if r.Per == u.per {
			return strconv.Itoa(r.Units) + "/" + u.text
		}
	}
	return strconv.Itoa(r.Units) + "/" + r.Per.String()
}

// spanText returns a time span as short as a person writes it: 1m, not 1m0s.
func spanText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// burstWord is the word before the burst in a limit's text, "" where it has none.
func (a Algorithm) burstWord() string {
	switch a {
	case AlgorithmTokenBucket:
		return "burst"
	case AlgorithmLeakyBucket:
		return "queue"
	}
	return ""
}

// String returns the limit as [ParseLimit] reads it, without its Name.
func (l Limit) String() string {
	if l.Algorithm == AlgorithmUnlimited || l.Algorithm == AlgorithmBlocked {
		return l.Algorithm.String()
	}
	if l.Algorithm == AlgorithmCalendar && l.Rate.Per == 0 && l.Period != (Period{}) {
		return l.Algorithm.String() + " " + strconv.Itoa(l.Rate.Units) + "/" + l.Period.String()
	}
	if l.Algorithm == AlgorithmConcurrent {
		return l.Algorithm.String() + " " + strconv.Itoa(l.Rate.Units) + " hold " + spanText(l.Rate.Per)
	}
	s := l.Algorithm.String() + " " + l.Rate.String()
	if word := l.Algorithm.burstWord(); word != "" {
		s += " " + word + " " + strconv.Itoa(l.Burst)
	}
	return s
}

// ParseLimit reads a limit from text such as
//
//	token-bucket 100/s burst 200
//	leaky-bucket 10/s queue 50
//	fixed-window 5000/h
//	sliding-log 100/m
//	sliding-counter 7/11s
//	calendar 1000/hour UTC
//	calendar 500/day UTC
//	calendar 20000/week America/New_York from monday
//	calendar 1000/month Europe/Berlin from 15
//	calendar 1000/day 04:00 Europe/Berlin
//	calendar 5000/year UTC
//	concurrent 8 hold 1m
//	unlimited
//	blocked
//
// The span after the slash is s, m, h, d (24 hours) or a duration such as 90s, 1h30m or 7d, in whole nanoseconds.
// Without from, a week begins on Monday and a month on the first. The error wraps [ErrInvalidLimit] and names the place.
func ParseLimit(s string) (Limit, error) {
	words := strings.Fields(s)
	if len(words) == 0 {
		return Limit{}, invalid("%q: want an algorithm and a rate, such as %q", s, "sliding-log 100/m")
	}
	l, err := parseWords(words)
	if err != nil {
		return Limit{}, invalid("%q: %s", s, strings.TrimPrefix(err.Error(), ErrInvalidLimit.Error()+": "))
	}
	return l, nil
}

func parseWords(words []string) (l Limit, err error) {
	if l.Algorithm, err = parseAlgorithm(words[0]); err != nil {
		return l, err
	}
	words = words[1:]
	if l.Algorithm == AlgorithmCalendar {
		return l.parseCalendar(words)
	}
	if l.Algorithm == AlgorithmConcurrent {
		return l.parseConcurrent(words)
	}
	if l.Algorithm != AlgorithmUnlimited && l.Algorithm != AlgorithmBlocked {
		if len(words) == 0 {
			return l, invalid("no rate after %v, want one such as 100/s", l.Algorithm)
		}
		if l.Rate, err = parseRate(words[0]); err != nil {
			return l, err
		}
		words = words[1:]
	}
	if word := l.Algorithm.burstWord(); word != "" {
		if l.Burst, err = parseBurst(word, words); err != nil {
			return l, err
		}
		words = words[2:]
	}
	if len(words) > 0 {
		return l, invalid("%q does not belong after %q", strings.Join(words, " "), l)
	}
	return l, l.Validate()
}

// parseCalendar parses the words after the word calendar.
func (l Limit) parseCalendar(words []string) (_ Limit, err error) {
	if len(words) == 0 {
		return l, invalid("no units after %v, want them such as 1000/month", l.Algorithm)
	}
	units, per, ok := strings.Cut(words[0], "/")
	unit, known := calendar.UnitOf(per)
	if !ok || !known {
		return l, invalid("%q is not a number of units for each minute, hour, day, week, month or year, such as 1000/month", words[0])
	}
	if l.Rate.Units, err = strconv.Atoi(units); err != nil {
		return l, invalid("rate %q: units %q are not a whole number in range", words[0], units)
	}
	zone, from, at, err := calendar.ParseAt(unit, words[1:])
	if err != nil {
		return l, invalid("%s", err)
	}
	l.Period = newPeriod(unit, zone, from).At(at)
	return l, l.Validate()
}

// parseConcurrent parses the words after the word concurrent.
func (l Limit) parseConcurrent(words []string) (_ Limit, err error) {
	const want = "such as concurrent 8 hold 1m"
	if len(words) == 0 {
		return l, invalid("no units after %v, want them and hold, %s", l.Algorithm, want)
	}
	if l.Rate.Units, err = strconv.Atoi(words[0]); err != nil {
		return l, invalid("units %q are not a whole number in range, %s", words[0], want)
	}
	if len(words) < 3 || words[1] != "hold" {
		return l, invalid("want \"hold\" and a time after the units, got %q, %s", strings.Join(words[1:], " "), want)
	}
	if l.Rate.Per, err = parsePer(words[2]); err != nil {
		return l, invalid("hold %q %v", words[2], err)
	}
	if len(words) > 3 {
		return l, invalid("%q does not belong after %q", strings.Join(words[3:], " "), l)
	}
	return l, l.Validate()
}

func parseAlgorithm(s string) (Algorithm, error) {
	for a, name := range algorithmNames {
		if a > 0 && s == name {
			return Algorithm(a), nil
		}
	}
	return 0, invalid("unknown algorithm %q, want one of %s", s, strings.Join(algorithmNames[1:], ", "))
}

func parseRate(s string) (r Rate, err error) {
	units, per, ok := strings.Cut(s, "/")
	if !ok {
		return r, invalid("rate %q has no slash, want one such as 100/s", s)
	}
	if r.Units, err = strconv.Atoi(units); err != nil {
		return r, invalid("rate %q: units %q are not a whole number in range", s, units)
	}
	if r.Per, err = parsePer(per); err != nil {
		return r, invalid("rate %q: span %q %v", s, per, err)
	}
	return r, nil
}

// parsePer reads a time span, or the letter of one.
func parsePer(s string) (time.Duration, error) {
	for _, u := range perUnits {
		if s == u.text {
			return u.per, nil
		}
	}
	return parseSpan(s)
}

// spanUnits are a span's units, in nanoseconds: ms before m, its prefix.
var spanUnits = []struct {
	text string
	ns   int64
}{
	{"ns", 1}, {"us", 1e3}, {"\u00b5s", 1e3}, {"\u03bcs", 1e3}, {"ms", 1e6},
	{"s", 1e9}, {"m", 60e9}, {"h", 3600e9}, {"d", 86400e9},
}

// parseSpan reads a time span. [time.ParseDuration] has no days, and truncates fractions of a nanosecond.
func parseSpan(s string) (time.Duration, error) {
	rest := strings.TrimLeft(s, "+-")
	if len(s)-len(rest) > 1 || rest == "" {
		return 0, errors.New(wantSpan)
	}
	sum := new(big.Rat)
	for rest != "" {
		number := rest[:len(rest)-len(strings.TrimLeft(rest, ".0123456789"))]
		rest = rest[len(number):]
		part, ok := new(big.Rat).SetString(number)
		unit := int64(0)
		for _, u := range spanUnits {
			if after, found := strings.CutPrefix(rest, u.text); found {
				unit, rest = u.ns, after
				break
			}
		}
		if !ok || unit == 0 {
			return 0, errors.New(wantSpan)
		}
		sum.Add(sum, part.Mul(part, new(big.Rat).SetInt64(unit)))
	}
	if s[0] == '-' {
		sum.Neg(sum)
	}
	switch {
	case !sum.IsInt():
		return 0, errors.New("is not a whole number of nanoseconds")
	case !sum.Num().IsInt64():
		return 0, errors.New("is longer than 292 years")
	}
	return time.Duration(sum.Num().Int64()), nil
}

const wantSpan = "is not s, m, h, d or a duration such as 11s"

func parseBurst(word string, words []string) (int, error) {
	if len(words) < 2 || words[0] != word {
		return 0, invalid("want %q and a number after the rate, got %q", word, strings.Join(words, " "))
	}
	n, err := strconv.Atoi(words[1])
	if err != nil {
		return 0, invalid("%s %q is not a whole number in range", word, words[1])
	}
	return n, nil
}

// nameWord is the word before a limit's name, and noLimit is the zero Limit, in MarshalText's text.
const (
	nameWord = "name"
	noLimit  = "none"
)

// MarshalText returns [Limit.String], followed by the Name if there is one: "token-bucket 100/s burst 200 name api".
// The zero Limit is "none". Any other invalid limit is an error.
func (l Limit) MarshalText() ([]byte, error) {
	if l == (Limit{}) {
		return []byte(noLimit), nil
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	text := l.String()
	if l.Name != "" {
		text += " " + nameWord + " " + l.Name
	}
	return []byte(text), nil
}

// UnmarshalText reads MarshalText's text. On an error the limit is left as it was.
func (l *Limit) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	if len(words) == 1 && words[0] == noLimit {
		*l = Limit{}
		return nil
	}
	name := ""
	if n := len(words); n > 2 && words[n-2] == nameWord {
		words, name = words[:n-2], words[n-1]
	}
	parsed, err := ParseLimit(strings.Join(words, " "))
	if err != nil {
		return err
	}
	parsed.Name = name
	if err = parsed.Validate(); err != nil {
		return err
	}
	*l = parsed
	return nil
}

// MarshalBinary is [Limit.MarshalText], for encoding/gob and net/rpc.
func (l Limit) MarshalBinary() ([]byte, error) { return l.MarshalText() }

// UnmarshalBinary is [Limit.UnmarshalText].
func (l *Limit) UnmarshalBinary(text []byte) error { return l.UnmarshalText(text) }
