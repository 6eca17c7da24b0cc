// Package testsize sizes a test run: how long random histories are, when tests with
// bounds on time run, and what a variant leaves out. scripts/test and .ci/run use
// environment variables for it, because a flag fails in each package not defining it.
package testsize

import (
	"cmp"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The names of the environment variables.
const (
	// Size is set to "long" by scripts/test -long.
	Size = "RATELIMIT_TEST_SIZE"
	// SeedOf is set to a number that changes the seeds of all random histories.
	SeedOf = "RATELIMIT_TEST_SEED"
	// Timed is set to "later" while other tests run.
	Timed = "RATELIMIT_TEST_TIMED"
	// Variant names a variant: a second run of tests already passed.
	Variant = "RATELIMIT_TEST_VARIANT"
)

// The names of variants. A variant repeats the tests whose results it can change. The functions below mark the others.
const (
	Racing   = "race"     // the race detector
	OldestGo = "oldestgo" // the oldest supported Go
	Bits32   = "32bit"    // a program of 32 bits
	Server   = "server"   // another version of the server
	Quick    = "quick"    // scripts/test without -all, as newcomers run it first
)

// LeftOut is Extra's reason for skipping a test.
const LeftOut = "scripts/test -all and .ci/run run it"

// Later is Alone's reason for skipping a test.
const Later = "it bounds a time, and runs alone after all others"

// Long reports whether tests have their full size.
func Long() bool { return os.Getenv(Size) == "long" }

// Of returns long if tests have their full size. Otherwise it returns change, the size for each change's test.
func Of[T any](change, long T) T {
	if Long() {
		return long
	}
	return change
}

// Seed returns a random history's seed. Each run uses the same seed, unless
// RATELIMIT_TEST_SEED is set to a number. scripts/test -long sets and prints one.
func Seed(seed uint64) uint64 {
	of, err := strconv.ParseUint(cmp.Or(os.Getenv(SeedOf), "0"), 10, 32)
	if err != nil {
		panic(SeedOf + " has to be a number below 1<<32: " + err.Error())
	}
	return seed ^ of<<32
}

// Alone must be the first call in a test whose result depends on the machine's load.
// scripts/test runs the test when all others have ended. go test runs it in its usual place.
func Alone(t testing.TB) {
	t.Helper()
	if os.Getenv(Timed) == "later" {
		t.Skip(Later)
	}
}

// Arithmetic must be the first call in a test computing on one goroutine, with integers of the same size
// on every machine. The variants for the race detector, the oldest Go and 32 bits leave the test out.
func Arithmetic(t testing.TB) {
	t.Helper()
	leaveOut(t, Racing, OldestGo, Bits32)
}

// Sequential must be the first call in a test if it simulates or calls a server from one goroutine, or repeats a
// suite on another server. The race detector leaves it out, because other tests run the same code concurrently.
func Sequential(t testing.TB) {
	t.Helper()
	leaveOut(t, Racing)
}

// Client must be the first call in a test of the client's code. Any server will
// do for such a test, so runs with another version of the server leave it out.
func Client(t testing.TB) {
	t.Helper()
	leaveOut(t, Server)
}

// Extra must be the first call in a test left to -all and .ci/run. Such a test takes seconds and shares its
// subject with quicker tests, or it needs inlined code, or a program other than Go, Redis and PostgreSQL.
func Extra(t testing.TB) {
	t.Helper()
	if os.Getenv(Variant) == Quick {
		t.Skip(LeftOut)
	}
	leaveOut(t)
}

// Program returns a program's path. If the program is missing, the test is skipped, or fails in CI, where scripts/need has installed it.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("%v: scripts/need installs it", err)
	default:
		t.Skipf("%v: apt-get install %s", err, name)
	}
	return path
}

// leaveOut skips a test in some variants. It fails for an unknown variant, because such a variant would leave out nothing.
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
