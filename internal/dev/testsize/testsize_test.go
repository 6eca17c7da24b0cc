package testsize

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestOnlyLongRunsHaveTheFullSize(t *testing.T) {
	for value, want := range map[string]int{"": 1, "short": 1, "long": 2} {
		t.Setenv(Size, value)
		assert.Equal(t, want, Of(1, 2), "%q", value)
	}
}

func TestSeedsAreTheSameInEachRunUnlessTheyAreMoved(t *testing.T) {
	t.Setenv(SeedOf, "") // because scripts/test -long sets it
	assert.EqualValues(t, 5, Seed(5))
	t.Setenv(SeedOf, "0")
	assert.EqualValues(t, 5, Seed(5))
	t.Setenv(SeedOf, "20261124")
	assert.NotEqual(t, Seed(5), Seed(6))
	assert.NotEqualValues(t, 5, Seed(5))
	for _, wrong := range []string{"x", "-1", "4294967296"} {
		t.Setenv(SeedOf, wrong)
		assert.Panics(t, func() { Seed(5) }, wrong)
	}
}

// skipping is a test recording whether it is skipped, and its failure.
type skipping struct {
	testing.TB
	skipped []any
	failed  string
}

func (s *skipping) Helper()                           {}
func (s *skipping) Skip(args ...any)                  { s.skipped = args }
func (s *skipping) Skipf(format string, args ...any)  { s.skipped = []any{fmt.Sprintf(format, args...)} }
func (s *skipping) Fatalf(format string, args ...any) { s.failed = fmt.Sprintf(format, args...) }

func TestATestThatBoundsATimeIsSkippedWhileOthersRun(t *testing.T) {
	for value, want := range map[string][]any{"": nil, "now": nil, "later": {Later}} {
		t.Setenv(Timed, value)
		var s skipping
		Alone(&s)
		assert.Equal(t, want, s.skipped, "%q", value)
	}
}

func TestAMissingProgramSkipsATestAndFailsItInCI(t *testing.T) {
	const missing = `exec: "no-such-program": executable file not found in $PATH: `
	for ci, want := range map[string]skipping{
		"":     {skipped: []any{missing + "apt-get install no-such-program"}},
		"true": {failed: missing + "scripts/need installs it"},
	} {
		t.Setenv("CI", ci)
		var s skipping
		Program(&s, "no-such-program")
		assert.Equal(t, want, s)
		s = skipping{}
		assert.NotEmpty(t, Program(&s, "go"))
		assert.Zero(t, s)
	}
}

func TestAVariantLeavesOutTheTestsThatItCannotChange(t *testing.T) {
	t.Setenv(Variant, "") // because a variant runs this test, too
	type mark = func(testing.TB)
	left := func(m mark) bool {
		var s skipping
		m(&s)
		assert.Empty(t, s.failed)
		return s.skipped != nil
	}
	for variant, want := range map[string][4]bool{
		"":       {false, false, false, false},
		Racing:   {true, true, false, false},
		OldestGo: {true, false, false, false},
		Bits32:   {true, false, false, false},
		Server:   {false, false, true, false},
		Quick:    {false, false, false, true},
	} {
		t.Setenv(Variant, variant)
		assert.Equal(t, want, [4]bool{left(Arithmetic), left(Sequential), left(Client), left(Extra)}, "%q", variant)
	}
}

func TestAnUnknownVariantFails(t *testing.T) {
	t.Setenv(Variant, "racy")
	for _, mark := range []func(testing.TB){Arithmetic, Sequential, Client, Extra} {
		var s skipping
		mark(&s)
		assert.Equal(t, `RATELIMIT_TEST_VARIANT is "racy", want one of race, oldestgo, 32bit, server, quick`, s.failed)
		assert.Nil(t, s.skipped)
	}
}

func TestTheTimeInWhichAProcessStopsDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := StartRunning()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Equal(t, 10*time.Second, r.Now())
		r.Stop()
		synctest.Wait()
		r.tick(time.Now().Add(20 * time.Second))
		assert.Equal(t, 10*time.Second+late, r.Now())
	})
}
