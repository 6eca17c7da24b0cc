package redislimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit/internal/outcome"
)

// errForeignState is the error for a Redis key whose value this package has not stored. Nothing was changed.
var errForeignState = errors.New("redislimit: the Redis key holds something else")

// refusals are the beginnings of Redis's errors when it refuses to run a
// script, because of its state or its configuration. Nothing was charged.
var refusals = []string{
	"LOADING", "READONLY", "OOM", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "MISCONF",
	"MOVED", "ASK", "UNBLOCKED", "ERR max number of clients", "max number of clients",
	"WRONGPASS", "NOAUTH", "NOPERM", "NOSCRIPT", "DENIED", "EXECABORT",
	"ERR AUTH", "ERR Client sent AUTH", "ERR invalid password", "ERR invalid DB index", "ERR DB index", "ERR unknown command",
}

// classify returns a call's error for the caller. If the caller's own context has
// ended, its error comes first. sent is true if the call may have reached the server.
func classify(ctx context.Context, err error, sent bool) error {
	if text := answerOf(err); text != "" {
		return classifyAnswer(err, text, sent)
	}
	if cause := outcome.EndOf(ctx); cause != nil {
		return ended(cause, sent)
	}
	return &outcome.Undecided{Cause: err, Sent: sent}
}

// ended is the error of a caller whose own context has ended.
func ended(cause error, sent bool) error { return outcome.Ended("redislimit", cause, sent) }

// refused reports whether an answer is one of the refusals.
func refused(text string) bool {
	return slices.ContainsFunc(refusals, func(refusal string) bool { return strings.HasPrefix(text, refusal) })
}

// answerOf returns the text of an error from Redis, or "" for any other error.
func answerOf(err error) string {
	var answer redis.Error
	if !errors.As(err, &answer) || errors.Is(err, redis.Nil) {
		return ""
	}
	return answer.Error()
}

// classifyAnswer returns the error for an error reply from a server, or a proxy in front of it. The program itself
// is wrong if the keys are in several slots, the server is too old, or a script meets a value of another format.
func classifyAnswer(err error, text string, sent bool) error {
	if refused(text) || forbidden(text) {
		return &outcome.Undecided{Cause: advised(err, text)}
	}
	if strings.HasPrefix(text, "CROSSSLOT") || strings.Contains(text, "undeclared key") || strings.Contains(text, "non local key") {
		return fmt.Errorf("%w (%w)", errSlots, err)
	}
	if strings.Contains(text, "unexpected symbol near '#'") {
		return fmt.Errorf("%w (%w)", errOldServer, err)
	}
	if strings.HasPrefix(text, "WRONGTYPE") || strings.HasPrefix(text, "ERR user_script:") {
		return fmt.Errorf("redislimit: %w", err)
	}
	return &outcome.Undecided{Cause: advised(err, text), Sent: sent}
}

// forbidden reports whether an ACL forbids a command of a script. The script notices it before it charges anything.
func forbidden(text string) bool {
	return strings.Contains(text, "can't run this command") || strings.Contains(text, "NOPERM") ||
		strings.Contains(text, "ACL failure in script") // Valkey's text
}

// advised appends the remedy to a reply's text, if the state will not end by itself.
func advised(err error, text string) error {
	advice := ""
	switch {
	case strings.HasPrefix(text, "WRONGPASS"), strings.HasPrefix(text, "NOAUTH"), strings.HasPrefix(text, "ERR AUTH"),
		strings.HasPrefix(text, "ERR Client sent AUTH"), strings.HasPrefix(text, "ERR invalid password"):
		advice = "check Username and Password of the client"
	case strings.Contains(text, "DB index"):
		advice = "check DB of the client; a cluster has 0 alone"
	case strings.Contains(text, "to access") && strings.Contains(text, "key") && forbidden(text):
		advice = "the user's ACL lacks the keys of Options.Prefix, as in ~ratelimit:*"
	case forbidden(text):
		advice = "the user's ACL lacks " + lacked(text)
	case refused(text):
		return err
	default:
		advice = "this is no reply of a Redis that runs the script: look at the server, and at proxies in front of it"
	}
	return fmt.Errorf("%w (%s)", err, advice)
}

// lacked returns the command forbidden by an ACL. Redis names it in quotes, and lacked returns it as an ACL rule is written.
func lacked(text string) string {
	if _, rest, ok := strings.Cut(text, "'"); ok {
		if command, _, ok := strings.Cut(rest, "' command"); ok && !strings.ContainsAny(command, "' ") {
			return "+" + command
		}
	}
	return "a command that the scripts of package redislimit call: its documentation lists them"
}

// errOldServer names the cause: the server is too old, and has read the script's first line as Lua.
var errOldServer = errors.New("redislimit: the server does not know scripts that begin with #!lua: it must be Redis 7.0 or later, or Valkey")

const whatToDo = "give them one with Options.Slot, spend a limit that all share from leases with Options.MaxBatch, " +
	"or ask the limiters one after the other with package chain"

// errSlots advises on keys in several slots.
var errSlots = errors.New("redislimit: the keys of one decision are in different slots of the cluster: " + whatToDo)

// errShards is errSlots for a Ring: it would use the first key's server for all.
var errShards = errors.New("redislimit: the keys of one decision are on different servers of the Ring, which has no slots but those that " +
	"Options.Slot gives: " + whatToDo)
