// Package testsize sets the size of a test run: how long the random histories are, when the tests run that bound a time, and which
// tests a variant leaves out. scripts/test and .ci/run set it with environment variables, since a flag fails in each package that
// does not define it.
package testsize

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Names of the variables.
const (
	// Size is set to "long" by scripts/test -long.
	Size = "RATELIMIT_TEST_SIZE"
	// SeedOf moves the seeds of all random histories by a number.
	SeedOf = "RATELIMIT_TEST_SEED"
	// Timed is set to "later" while other tests run.
	Timed = "RATELIMIT_TEST_TIMED"
	// Variant is set to the name of a variant: a second run of tests that have passed already.
	Variant = "RATELIMIT_TEST_VARIANT"
)

// Variants. A variant repeats the tests whose result it can change, and the marks below name the others.
const (
	Racing   = "race"     // with the race detector
	OldestGo = "oldestgo" // with the oldest supported Go
	Bits32   = "32bit"    // as a program of 32 bits
	Server   = "server"   // on another version of the server
	Quick    = "quick"    // scripts/test without -all: the first run of a newcomer
)

// LeftOut is the reason of a test that Extra has skipped.
const LeftOut = "scripts/test -all and .ci/run run it"

// Later is the reason of a test that Alone has skipped.
const Later = "it bounds a time, and runs alone after all others"

// Long reports whether tests have their full size.
func Long() bool { return os.Getenv(Size) == "long" }

// Of returns long if tests have their full size. Otherwise it returns change, the size at which each change is tested.
func Of[T any](change, long T) T {
	if Long() {
		return long
	}
	return change
}

// Seed returns the seed of one of a test's random histories: the same in each run, unless RATELIMIT_TEST_SEED is set to a number,
// which scripts/test -long prints.
func Seed(seed uint64) uint64 {
	of, err := strconv.ParseUint(cmp.Or(os.Getenv(SeedOf), "0"), 10, 32)
	if err != nil {
		panic(SeedOf + " has to be a number below 1<<32: " + err.Error())
	}
	return seed ^ of<<32
}

// Alone is the first call of a test whose result depends on the load of the machine. scripts/test runs it again when all other tests have
// ended; go test runs it where it is.
func Alone(t testing.TB) {
	t.Helper()
	if os.Getenv(Timed) == "later" {
		t.Skip(Later)
	}
}

// Arithmetic is the first call of a test that computes on one goroutine, in integers whose size is the same on every machine. The race
// detector, another Go and 32 bits leave it out.
func Arithmetic(t testing.TB) {
	t.Helper()
	leaveOut(t, Racing, OldestGo, Bits32)
}

// Sequential is the first call of a test that simulates or calls a server from one goroutine, or that repeats a suite on another server.
// The race detector leaves it out: other tests run the same code concurrently.
func Sequential(t testing.TB) {
	t.Helper()
	leaveOut(t, Racing)
}

// Client is the first call of a test of the calls in this process, for which any server does. Another version of the server leaves it
// out.
func Client(t testing.TB) {
	t.Helper()
	leaveOut(t, Server)
}

// Extra is the first call of a test that scripts/test leaves to -all and .ci/run: it takes seconds and shares its subject with
// quicker tests, or it needs another program than Go, Redis and PostgreSQL, or inlined code.
func Extra(t testing.TB) {
	t.Helper()
	if os.Getenv(Variant) == Quick {
		t.Skip(LeftOut)
	}
	leaveOut(t)
}

// leaveOut skips a test in some variants. An unknown variant is an error, since it would leave out nothing.
func leaveOut(t testing.TB, variants ...string) {
	t.Helper()
	all := []string{Racing, OldestGo, Bits32, Server, Quick}
	switch variant := os.Getenv(Variant); {
	case variant == "":
	case slices.Contains(variants, variant):
		t.Skip("the variant " + variant + " cannot change its result")
	case !slices.Contains(all, variant):
		t.Fatalf("%s is %q, want one of %s", Variant, variant, strings.Join(all, ", "))
	}
}
