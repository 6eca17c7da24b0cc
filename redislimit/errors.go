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

// errForeignState is for a Redis key whose value this package has not stored. Nothing was changed.
var errForeignState = errors.New("redislimit: the Redis key holds something else")

// refusals are the beginnings of the replies with which Redis refuses to run a script because of its present state, and may run
// it later.
var refusals = []string{
	"LOADING", "READONLY", "OOM", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "MISCONF",
	"MOVED", "ASK", "UNBLOCKED", "ERR max number of clients", "max number of clients",
}

// classify returns the error of a call for the caller. The caller's own context comes first; sent is true if the call may have
// reached the server.
func classify(ctx context.Context, err error, sent bool) error {
	if text := answerOf(err); text != "" {
		return classifyAnswer(err, text)
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

// answerOf returns the text of an error that is an answer of Redis, "" if it is none.
func answerOf(err error) string {
	var answer redis.Error
	if !errors.As(err, &answer) || errors.Is(err, redis.Nil) {
		return ""
	}
	return answer.Error()
}

func classifyAnswer(err error, text string) error {
	if refused(text) {
		return &outcome.Undecided{Cause: err}
	}
	if strings.HasPrefix(text, "CROSSSLOT") || strings.Contains(text, "undeclared key") || strings.Contains(text, "non local key") {
		return fmt.Errorf("%w (%w)", errSlots, err)
	}
	if strings.Contains(text, "unexpected symbol near '#'") {
		return fmt.Errorf("%w (%w)", errOldServer, err)
	}
	return fmt.Errorf("redislimit: %w", err)
}

// errOldServer advises on a server that takes the first line of a script for Lua.
var errOldServer = errors.New("redislimit: the server does not know scripts that begin with #!lua: it must be Redis 7.0 or later, or Valkey")

const whatToDo = "give them one with Options.Slot, spend a limit that all share from leases with Leased, " +
	"or ask the limiters one after the other with package chain"

// errSlots advises on keys in several slots.
var errSlots = errors.New("redislimit: the keys of one decision are in different slots of the cluster: " + whatToDo)

// errShards is errSlots for a Ring, which would use the server of the first key for all of them.
var errShards = errors.New("redislimit: the keys of one decision are on different servers of the Ring, which has no slots but those that " +
	"Options.Slot gives: " + whatToDo)
