// Package testsize reads what scripts/test says to the tests of all modules: how large they are, and when those run that bound a
// time. It says so by environment variables, since a flag fails in each package that does not know it.
package testsize

import (
	"cmp"
	"os"
	"strconv"
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
)

// Later is the reason of a test that Alone has skipped.
const Later = "it bounds a time, and runs alone after all others"

// Long reports whether tests have their full size.
func Long() bool { return os.Getenv(Size) == "long" }

// Of returns long if tests have their full size, and else change, the size at which they run for each change.
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

// Alone is the first call of a test whose result depends on what else the machine does. scripts/test runs it again when all other
// tests have ended; go test runs it where it is.
func Alone(t testing.TB) {
	t.Helper()
	if os.Getenv(Timed) == "later" {
		t.Skip(Later)
	}
}
