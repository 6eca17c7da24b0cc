package ratelimit_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/rpc"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
)

var limitTexts = []struct {
	limit ratelimit.Limit
	text  string
}{
	{ratelimit.TokenBucket(ratelimit.PerSecond(100), 200), "token-bucket 100/s burst 200"},
	{ratelimit.LeakyBucket(ratelimit.PerSecond(10), 50), "leaky-bucket 10/s queue 50"},
	{ratelimit.FixedWindow(ratelimit.PerHour(5000)), "fixed-window 5000/h"},
	{ratelimit.SlidingLog(ratelimit.PerMinute(100)), "sliding-log 100/m"},
	{ratelimit.SlidingCounter(ratelimit.Per(7, 11*time.Second)), "sliding-counter 7/11s"},
	{ratelimit.FixedWindow(ratelimit.PerDay(1)), "fixed-window 1/d"},
	{ratelimit.FixedWindow(ratelimit.Per(1, 48*time.Hour)), "fixed-window 1/48h0m0s"},
	{ratelimit.FixedWindow(ratelimit.Per(1, 90*time.Minute)), "fixed-window 1/1h30m0s"},
	{ratelimit.FixedWindow(ratelimit.Per(1, 1)), "fixed-window 1/1ns"},
	{ratelimit.FixedWindow(ratelimit.Per(1, 1500)), "fixed-window 1/1.5µs"},
	{ratelimit.TokenBucket(ratelimit.Per(3, math.MaxInt64), 1), "token-bucket 3/2562047h47m16.854775807s burst 1"},
	{ratelimit.Calendar(500, ratelimit.Day("UTC")), "calendar 500/day UTC"},
	{ratelimit.Calendar(20_000, ratelimit.Week("America/New_York", time.Monday)), "calendar 20000/week America/New_York from monday"},
	{ratelimit.Calendar(1, ratelimit.Week("Etc/GMT+5", time.Sunday)), "calendar 1/week Etc/GMT+5 from sunday"},
	{ratelimit.Calendar(1000, ratelimit.Month("Europe/Berlin", 15)), "calendar 1000/month Europe/Berlin from 15"},
	{ratelimit.Unlimited(), "unlimited"},
	{ratelimit.Blocked(), "blocked"},
}

func TestLimitsAsText(t *testing.T) {
	for _, tt := range limitTexts {
		t.Run(tt.text, func(t *testing.T) {
			require.Equal(t, tt.text, tt.limit.String())
			require.Equal(t, tt.text, tt.limit.Named("plan").String(), "the name is left out")
			parsed, err := ratelimit.ParseLimit(tt.text)
			require.NoError(t, err)
			require.Equal(t, tt.limit, parsed)
			text, err := tt.limit.MarshalText()
			require.NoError(t, err)
			require.Equal(t, tt.text, string(text))
		})
	}
}

func TestOtherWaysToWriteALimit(t *testing.T) {
	tests := map[string]ratelimit.Limit{
		"  sliding-log \t 100/m\n":        ratelimit.SlidingLog(ratelimit.PerMinute(100)),
		"fixed-window 5/1s":               ratelimit.FixedWindow(ratelimit.PerSecond(5)),
		"fixed-window 5/60s":              ratelimit.FixedWindow(ratelimit.PerMinute(5)),
		"fixed-window 5/24h":              ratelimit.FixedWindow(ratelimit.PerDay(5)),
		"fixed-window 5/1h0.5m":           ratelimit.FixedWindow(ratelimit.Per(5, 3630*time.Second)),
		"token-bucket  1/s  burst  02":    ratelimit.TokenBucket(ratelimit.PerSecond(1), 2),
		"fixed-window 5/7d":               ratelimit.FixedWindow(ratelimit.Per(5, 7*24*time.Hour)),
		"fixed-window 5/1d":               ratelimit.FixedWindow(ratelimit.PerDay(5)),
		"fixed-window 5/1d12h":            ratelimit.FixedWindow(ratelimit.Per(5, 36*time.Hour)),
		"fixed-window 5/0.5d":             ratelimit.FixedWindow(ratelimit.Per(5, 12*time.Hour)),
		"fixed-window 5/+1.50s":           ratelimit.FixedWindow(ratelimit.Per(5, 1500*time.Millisecond)),
		"fixed-window 5/.5s":              ratelimit.FixedWindow(ratelimit.Per(5, 500*time.Millisecond)),
		"fixed-window 5/1.s":              ratelimit.FixedWindow(ratelimit.PerSecond(5)),
		"fixed-window 5/1us":              ratelimit.FixedWindow(ratelimit.Per(5, time.Microsecond)),
		"fixed-window 5/1\u00b5s":         ratelimit.FixedWindow(ratelimit.Per(5, time.Microsecond)),
		"fixed-window 5/1\u03bcs":         ratelimit.FixedWindow(ratelimit.Per(5, time.Microsecond)),
		"calendar 5/month UTC":            ratelimit.Calendar(5, ratelimit.Month("UTC", 1)),
		"calendar 5/week UTC":             ratelimit.Calendar(5, ratelimit.Week("UTC", time.Monday)),
		"calendar 5/week UTC from Friday": ratelimit.Calendar(5, ratelimit.Week("UTC", time.Friday)),
		// This has ten digits, and is still a whole number of nanoseconds.
		"fixed-window 5/1.0000000001h": ratelimit.FixedWindow(ratelimit.Per(5, time.Hour+360)),
		"fixed-window 5/1.9999999990s": ratelimit.FixedWindow(ratelimit.Per(5, 2*time.Second-1)),
	}
	for text, want := range tests {
		got, err := ratelimit.ParseLimit(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
}

// Each error names the fault, with the wrong figure or word.
func TestTextThatIsNoLimit(t *testing.T) {
	tests := []struct{ name, text, fault string }{
		{"nothing", "", "algorithm"},
		{"only spaces", " \t", "algorithm"},
		{"unknown algorithm", "gcra 5/s", `"gcra"`},
		{"algorithm in capitals", "Fixed-Window 5/s", `"Fixed-Window"`},
		{"a number for an algorithm", "algorithm(9) 5/s", `"algorithm(9)"`},
		{"no rate", "sliding-log", "sliding-log"},
		{"no slash", "sliding-log 100", `"100"`},
		{"units that are no number", "sliding-log x/s", `"x"`},
		{"units with a fraction", "sliding-log 1.5/s", `"1.5"`},
		{"units out of range", "sliding-log 99999999999999999999/s", `"99999999999999999999"`},
		{"no units", "sliding-log /s", `""`},
		{"unknown unit of time", "sliding-log 5/w", `"w"`},
		{"no unit of time", "sliding-log 5/11", `"11"`},
		{"no span", "sliding-log 5/", `""`},
		{"two slashes", "sliding-log 5/s/s", `"s/s"`},
		{"zero units", "sliding-log 0/s", "Rate.Units is 0"},
		{"units below zero", "sliding-log -5/s", "Rate.Units is -5"},
		{"a span of zero", "sliding-log 5/0s", "Rate.Per is 0s"},
		{"a span below zero", "sliding-log 5/-1s", "Rate.Per is -1s"},
		{"a span that is cut between nanoseconds", "sliding-log 5/1.9999999999s", `"1.9999999999s" is not a whole number of nanoseconds`},
		{"a span below a nanosecond", "sliding-log 5/0.5ns", `"0.5ns" is not a whole number of nanoseconds`},
		{"a span that is cut, of several units", "sliding-log 5/1h0.0000000001s", "whole number of nanoseconds"},
		{"more than a Duration holds", "sliding-log 5/106752d", `"106752d"`},
		{"far more than a Duration holds", "sliding-log 5/99999999999999999999d", `"99999999999999999999d"`},
		{"days twice", "sliding-log 5/1.2.3d", `"1.2.3d"`},
		{"no number before the unit", "sliding-log 5/.d", `".d"`},
		{"only a sign", "sliding-log 5/-", `"-"`},
		{"no burst", "token-bucket 5/s", `"burst"`},
		{"no number after burst", "token-bucket 5/s burst", `"burst"`},
		{"burst that is no number", "token-bucket 5/s burst ten", `"ten"`},
		{"zero burst", "token-bucket 5/s burst 0", "Burst is 0"},
		{"the other bucket's word", "token-bucket 5/s queue 5", `"burst"`},
		{"the other bucket's word again", "leaky-bucket 5/s burst 5", `"queue"`},
		{"a burst for a window", "fixed-window 5/s burst 5", `"burst 5"`},
		{"a rate for none", "unlimited 5/s", `"5/s"`},
		{"a word too many", "token-bucket 5/s burst 5 now", `"now"`},
		{"a calendar of nothing", "calendar", "calendar"},
		{"a calendar of decades", "calendar 5/decade UTC", `"5/decade"`},
		{"a calendar at no time of the day", "calendar 5/day 4:00 UTC", `"4:00"`},
		{"hours at a time of the day", "calendar 5/hour 04:00 UTC", "hour begins on the clock"},
		{"a year with an anchor", "calendar 5/year UTC from 2", `"from 2"`},
		{"a calendar with a span", "calendar 5/24h UTC", `"5/24h"`},
		{"a calendar without a slash", "calendar 5 UTC", `"5"`},
		{"a calendar without a zone", "calendar 5/day", "no time zone after day"},
		{"a calendar's units that are no number", "calendar x/day UTC", `"x"`},
		{"a calendar of zero units", "calendar 0/day UTC", "Rate.Units is 0"},
		{"an unknown zone", "calendar 5/day Mars/Olympus", `"Mars/Olympus" is not known: want`},
		{"the machine's zone", "calendar 5/day Local", `"Local"`},
		{"a day from a day", "calendar 5/day UTC from 3", `"from 3"`},
		{"no day of the week", "calendar 5/week UTC from caturday", `"caturday"`},
		{"the first day of a week as a number", "calendar 5/week UTC from 1", `"1"`},
		{"no day of the month", "calendar 5/month UTC from monday", `"monday"`},
		{"month from 0", "calendar 5/month UTC from 0", "is 0, want 1 to 31"},
		{"month from 32", "calendar 5/month UTC from 32", "is 32, want 1 to 31"},
		{"nothing after from", "calendar 5/month UTC from", `"from"`},
		{"a word too many in a calendar", "calendar 5/month UTC from 1 now", `"now" does not belong`},
		{"a burst for a calendar", "calendar 5/month UTC burst 5", `"burst 5"`},
		{"more than a century", "token-bucket 1/d burst 36526", "100 years"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := ratelimit.ParseLimit(tt.text)
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
			require.ErrorContains(t, err, tt.fault)
			require.Equal(t, ratelimit.Limit{}, l)
			kept := ratelimit.Blocked().Named("kept")
			require.Error(t, kept.UnmarshalText([]byte(tt.text)))
			require.Equal(t, ratelimit.Blocked().Named("kept"), kept, "an error leaves the limit alone")
		})
	}
}

func TestLimitsInJSON(t *testing.T) {
	type config struct{ Limits map[string]ratelimit.Limit }
	in := config{map[string]ratelimit.Limit{"free": ratelimit.SlidingLog(ratelimit.PerMinute(5)), "paid": ratelimit.Unlimited()}}
	text, err := json.Marshal(in)
	require.NoError(t, err)
	require.JSONEq(t, `{"Limits": {"free": "sliding-log 5/m", "paid": "unlimited"}}`, string(text))
	var out config
	require.NoError(t, json.Unmarshal(text, &out))
	require.Equal(t, in, out)

	_, err = json.Marshal(ratelimit.FixedWindow(ratelimit.PerSecond(0)))
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.ErrorIs(t, json.Unmarshal([]byte(`"sliding-log"`), &ratelimit.Limit{}), ratelimit.ErrInvalidLimit)
}

// A limit's name is stored with it.
func TestANameSurvivesMarshalling(t *testing.T) {
	for _, tt := range limitTexts {
		in := tt.limit.Named("api-v2_x")
		text, err := json.Marshal(in)
		require.NoError(t, err)
		require.Equal(t, strconv.Quote(tt.text+" name api-v2_x"), string(text))
		_, err = ratelimit.ParseLimit(tt.text + " name api-v2_x")
		require.ErrorContains(t, err, `"name api-v2_x"`, "it reads limits without names")
		out := ratelimit.Blocked().Named("before")
		require.NoError(t, json.Unmarshal(text, &out))
		require.Equal(t, in, out)
	}
	for _, text := range []string{"unlimited name", "unlimited name 1st", "unlimited name a b", "name api", "none name api", "unlimited name a name b"} {
		kept := ratelimit.Blocked().Named("kept")
		require.ErrorIs(t, kept.UnmarshalText([]byte(text)), ratelimit.ErrInvalidLimit, text)
		require.Equal(t, ratelimit.Blocked().Named("kept"), kept)
	}
	_, err := json.Marshal(ratelimit.Unlimited().Named("not a name"))
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

// Most errors come with a Decision without a limit. A log line in JSON contains such a Decision, too.
func TestADecisionWithoutALimitSurvivesMarshalling(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.FixedWindow(ratelimit.PerSecond(5)).Named("api"))
	for _, cost := range []int{-1, 0, 1, 6} {
		in, _ := l.Take(t.Context(), "k", cost)
		text, err := json.Marshal(in)
		require.NoError(t, err, cost)
		out := ratelimit.Decision{Limit: ratelimit.Blocked()}
		require.NoError(t, json.Unmarshal(text, &out))
		require.Equal(t, in, out)
	}
}

// If a text parses, the limit is valid, and the limit's own text gives the same limit. Otherwise there is no limit.
func FuzzParseLimit(f *testing.F) {
	for _, tt := range limitTexts {
		f.Add(tt.text)
	}
	f.Add("token-bucket 5/s burst")
	f.Add("sliding-log 9007199254740993/1ns")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ratelimit.ParseLimit(text)
		if err != nil {
			require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
			require.Equal(t, ratelimit.Limit{}, l)
			return
		}
		require.NoError(t, l.Validate())
		again, err := ratelimit.ParseLimit(l.String())
		require.NoError(t, err)
		require.Equal(t, l, again)
		_, err = ratelimit.New[string](l, nil)
		require.NoError(t, err)
	})
}

// Answerer is the service of a net/rpc server.
type Answerer struct{ l *ratelimit.Keyed[string] }

// Take decides on a key under the limit in the call.
func (a Answerer) Take(limit ratelimit.Limit, d *ratelimit.Decision) (err error) {
	if err = a.l.SetLimit(limit); err == nil {
		*d, err = a.l.Take(context.Background(), "k", 1)
	}
	return err
}

func TestLimitsAndDecisionsAreSentByGobAndRPC(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.Unlimited())
	clock.set(time.Hour)
	server := rpc.NewServer()
	require.NoError(t, server.Register(Answerer{l}))
	here, there := net.Pipe()
	go server.ServeConn(there)
	client := rpc.NewClient(here)
	defer client.Close()
	for i, test := range limitTexts {
		limit := test.limit
		if i%2 == 0 {
			limit = limit.Named("of-its-own")
		}
		var b bytes.Buffer
		require.NoError(t, gob.NewEncoder(&b).Encode(limit))
		var read ratelimit.Limit
		require.NoError(t, gob.NewDecoder(&b).Decode(&read))
		require.Equal(t, limit, read)

		var d ratelimit.Decision
		l.Reset(context.Background(), "k") // removes the spending under the previous limit
		err := client.Call("Answerer.Take", limit, &d)
		if limit.Algorithm == ratelimit.AlgorithmBlocked {
			require.ErrorContains(t, err, "blocked")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, limit, d.Limit)
		require.True(t, d.Allowed)

		sent := struct {
			None, Some ratelimit.Limit
			Answer     ratelimit.Decision
		}{Some: limit, Answer: d}
		got := sent
		got.Some, got.Answer = ratelimit.Limit{}, ratelimit.Decision{}
		require.NoError(t, gob.NewEncoder(&b).Encode(sent))
		require.NoError(t, gob.NewDecoder(&b).Decode(&got))
		require.Equal(t, sent, got)
	}
	var b bytes.Buffer
	require.ErrorIs(t, gob.NewEncoder(&b).Encode(ratelimit.FixedWindow(ratelimit.PerDay(0))), ratelimit.ErrInvalidLimit)
	kept := ratelimit.Unlimited()
	require.ErrorIs(t, kept.UnmarshalBinary([]byte("fixed-window 0/d")), ratelimit.ErrInvalidLimit)
	require.Equal(t, ratelimit.Unlimited(), kept, "on an error it is left as it was")
}

// The tables in bucket.go, leaky.go, window.go and slidinglog.go are correct, row by row.
func TestTheWorkedExamplesOfTheAlgorithms(t *testing.T) {
	for _, example := range []struct {
		file, with string
		limit      ratelimit.Limit
	}{
		{"bucket.go", "TokenBucket(PerSecond(10), 20)", ratelimit.TokenBucket(ratelimit.PerSecond(10), 20)},
		{"leaky.go", "LeakyBucket(PerSecond(10), 3)", ratelimit.LeakyBucket(ratelimit.PerSecond(10), 3)},
		{"window.go", "FixedWindow(PerMinute(10))", ratelimit.FixedWindow(ratelimit.PerMinute(10))},
		{"window.go", "SlidingCounter(PerMinute(10))", ratelimit.SlidingCounter(ratelimit.PerMinute(10))},
		{"slidinglog.go", "SlidingLog(PerMinute(10))", ratelimit.SlidingLog(ratelimit.PerMinute(10))},
	} {
		t.Run(example.with, func(t *testing.T) {
			source, err := os.ReadFile(example.file)
			require.NoError(t, err)
			_, table, found := strings.Cut(string(source), "With "+example.with+", for one key:\n//\n")
			require.True(t, found, "%s has no such example", example.file)
			table, _, _ = strings.Cut(table, "\n//\n")
			rows := strings.Split(table, "\n")[1:]
			require.Greater(t, len(rows), 4)
			l, clock := newLimiter(t, example.limit)
			for _, row := range rows {
				cells := strings.Fields(strings.TrimPrefix(row, "//"))
				at, err := time.ParseDuration(cells[0])
				require.NoError(t, err, row)
				clock.set(at)
				var cost int
				_, err = fmt.Sscan(cells[1], &cost)
				require.NoError(t, err, row)
				d, err := l.Take(t.Context(), "k", cost)
				require.NoError(t, err, row)
				got := []string{fmt.Sprint(d.Allowed), fmt.Sprint(d.Remaining), d.RetryAfter.String(), d.ResetAfter.String(), d.Delay.String()}
				if len(cells) == 6 {
					assert.Equal(t, "0s", got[4], row)
					got = got[:4]
				}
				assert.Equal(t, got, cells[2:], row)
			}
		})
	}
}
