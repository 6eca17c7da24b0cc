package ratelimit

import (
	"strconv"
	"strings"
	"time"
)

// perUnits are the spans that the text form of a rate has a letter for.
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

// String returns the limit as [ParseLimit] reads it, without its Name:
//
//	token-bucket 100/s burst 200
//	leaky-bucket 10/s queue 50
//	sliding-log 100/m
//	unlimited
func (l Limit) String() string {
	if l.Algorithm == AlgorithmUnlimited || l.Algorithm == AlgorithmBlocked {
		return l.Algorithm.String()
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
//	unlimited
//	blocked
//
// The span after the slash is s, m, h or d (24 hours), or a duration as
// [time.ParseDuration] reads it. For a valid limit, ParseLimit(l.String()) is l
// without its Name. Every error wraps [ErrInvalidLimit] and says what is wrong
// where; the result is valid as [Limit.Validate] has it.
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
	for _, u := range perUnits {
		if per == u.text {
			r.Per = u.per
			return r, nil
		}
	}
	if r.Per, err = time.ParseDuration(per); err != nil {
		return r, invalid("rate %q: span %q is not s, m, h, d or a duration such as 11s", s, per)
	}
	return r, nil
}

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

// MarshalText returns the limit's [Limit.String], so that JSON, YAML, flags and
// whatever else knows [encoding.TextMarshaler] can write limits. An invalid limit
// is an error.
func (l Limit) MarshalText() ([]byte, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	return []byte(l.String()), nil
}

// UnmarshalText sets the limit to what [ParseLimit] reads from text, without a
// Name. On an error the limit is left as it was.
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := ParseLimit(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}
