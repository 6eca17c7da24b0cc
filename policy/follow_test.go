package policy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
	"github.com/weir-go/ratelimit/policy"
)

// versioned returns a file with a version and one rule.
func versioned(version string) string {
	return fmt.Sprintf("version: %s\nrules:\n- {name: api, key: user, limit: fixed-window 5/h}\n", version)
}

// logs collects a logger's lines.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// followed starts Follow on a source, and stops it at the test's end.
func followed(t testing.TB, src policy.Source) (*policy.Policies, *logs) {
	t.Helper()
	out := new(logs)
	p, err := policy.New(nil, &policy.Options{Logger: slog.New(slog.NewTextHandler(out, nil))})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- policy.Follow(ctx, p, src) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
	return p, out
}

// becomes waits until a version is in force. Its deadline is not a promise, because machines may be slow.
func becomes(t *testing.T, p *policy.Policies, version string) {
	t.Helper()
	require.Eventually(t, func() bool { return p.Stats().Version == version }, 20*time.Second, time.Millisecond, "version %s", version)
}

func write(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// oneSet is a source returning the set given last.
type oneSet struct {
	set    atomic.Pointer[policy.Set]
	change chan struct{}
}

func (s *oneSet) Load(context.Context) (*policy.Set, error) { return s.set.Load(), nil }
func (s *oneSet) Changes(ctx context.Context) <-chan struct{} {
	context.AfterFunc(ctx, func() { close(s.change) })
	return s.change
}

func TestFollowWarnsOfRulesThatLetEverythingPass(t *testing.T) {
	rule := policy.Rule{Name: "api", Limit: ratelimit.FixedWindow(ratelimit.PerHour(1))}
	off, shadow := rule, rule
	off.Disabled, shadow.Shadow = true, true
	forgotten := policy.Rule{Name: "probes", Allow: true} // the author forgot its match
	disabled := forgotten
	disabled.Disabled = true
	src := &oneSet{change: make(chan struct{}, 1)}
	src.set.Store(&policy.Set{Version: "first", Rules: []policy.Rule{rule}})
	p, out := followed(t, src)
	becomes(t, p, "first")
	for version, row := range map[string]struct {
		set  policy.Set
		warn bool
	}{
		"none":         {policy.Set{}, true},
		"disabled":     {policy.Set{Rules: []policy.Rule{off}}, true},
		"killed":       {policy.Set{KillSwitch: true, Rules: []policy.Rule{rule}}, true},
		"exempt":       {policy.Set{Rules: []policy.Rule{rule, forgotten}}, true},
		"not exempt":   {policy.Set{Rules: []policy.Rule{rule, disabled}}, false},
		"some exempt":  {policy.Set{Defaults: &policy.Defaults{Match: policy.Match{Route: []string{"/x"}}}, Rules: []policy.Rule{rule, forgotten}}, false},
		"only shadows": {policy.Set{Rules: []policy.Rule{shadow}}, false},
	} {
		row.set.Version = version
		src.set.Store(&row.set)
		src.change <- struct{}{}
		becomes(t, p, version)
		line := func() string {
			for l := range strings.Lines(out.String()) {
				if strings.Contains(l, fmt.Sprintf("version=%s ", version)) || strings.Contains(l, fmt.Sprintf("version=%q ", version)) {
					return l
				}
			}
			return ""
		}
		require.Eventually(t, func() bool { return line() != "" }, 20*time.Second, time.Millisecond, version)
		assert.Equal(t, row.warn, strings.Contains(line(), "level=WARN"), "%s: %s", version, line())
		assert.Equal(t, row.warn, strings.Contains(line(), "every request passes"), version)
	}
}

// TestFollowLogsTheWarningsOfCheckForEverySource uses a source whose sets come from no file.
func TestFollowLogsTheWarningsOfCheckForEverySource(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerHour(5))
	src := &oneSet{change: make(chan struct{}, 1)}
	src.set.Store(&policy.Set{Version: "first", Attributes: []string{"user"}, Rules: []policy.Rule{
		{Name: "fine", Key: []string{"user"}, Limit: limit},
		{Name: "unknown", Key: []string{"usr"}, Limit: limit},
		{Name: "dear", Limit: limit, Cost: policy.Cost{Number: 6}},
	}})
	p, out := followed(t, src)
	warnings := func() (all []string) {
		for l := range strings.Lines(out.String()) {
			if strings.Contains(l, "mistake") {
				all = append(all, l)
			}
		}
		return all
	}
	require.Eventually(t, func() bool { return len(warnings()) == 2 }, 20*time.Second, time.Millisecond)
	assert.Regexp(t, `level=WARN .* rule=unknown field=rules\[1\].key\[0\] warning="the attribute \\"usr\\" is not among the attributes of the set`, warnings()[0])
	assert.Regexp(t, `level=WARN .* rule=dear field=rules\[2\].cost warning="the rule's cost of 6 is above 5`, warnings()[1])

	many := &policy.Set{Version: "many"}
	for i := range 100 {
		many.Rules = append(many.Rules, policy.Rule{Name: fmt.Sprint("r", i), Limit: limit, Cost: policy.Cost{Number: 6}})
	}
	src.set.Store(many)
	src.change <- struct{}{}
	becomes(t, p, "many")
	require.Eventually(t, func() bool { return len(warnings()) == 2+21 }, 20*time.Second, time.Millisecond)
	assert.Contains(t, warnings()[22], "unlogged=80")
}

func TestFileFollowsEveryWayOfChangingAFile(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, path string)
		wrong  func(error) bool // the error of a file that cannot be read; nil for a change to v2
	}{
		"written in place": {change: func(t *testing.T, path string) { write(t, path, versioned("v2")) }},
		"replaced": {change: func(t *testing.T, path string) {
			write(t, path+".new", versioned("v2"))
			require.NoError(t, os.Rename(path+".new", path))
		}},
		"half written": {change: func(t *testing.T, path string) {
			write(t, path, "version: v2\nrules:\n- name: api\n  limit: fixed-win")
		},
			wrong: func(err error) bool { return errors.As(err, new(*policy.Error)) }},
		"removed": {change: func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
			wrong: func(err error) bool { return errors.Is(err, os.ErrNotExist) }},
		"a folder in its place": {change: func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Mkdir(path, 0o700))
		}, wrong: func(err error) bool { return strings.Contains(err.Error(), "not a regular file") }},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rules.yaml")
			write(t, path, versioned("v1"))
			p, out := followed(t, policy.File(path))
			becomes(t, p, "v1")
			c.change(t, path)
			if c.wrong != nil {
				require.Eventually(t, func() bool { err := p.Stats().LastError; return err != nil && c.wrong(err) }, 20*time.Second, time.Millisecond)
				assert.Equal(t, "v1", p.Stats().Version, "the last good set stays")
				require.Eventually(t, func() bool { return strings.Contains(out.String(), `the last good ones stay" error=`) }, 20*time.Second, time.Millisecond)
				if _, err := os.ReadDir(path); err == nil {
					require.NoError(t, os.Remove(path))
				}
				write(t, path, versioned("v2"))
			}
			becomes(t, p, "v2")
			assert.NoError(t, p.Stats().LastError)
			require.Eventually(t, func() bool { return strings.Contains(out.String(), "version=v2") }, 20*time.Second, time.Millisecond, "it is logged once it is in force")
		})
	}
}

// TestFileFollowsAConfigMap changes a file as Kubernetes does. The file is a link
// into ..data. ..data is itself a link, and is moved from one folder to another.
func TestFileFollowsAConfigMap(t *testing.T) {
	dir := t.TempDir()
	publish := func(version string) {
		folder := filepath.Join(dir, "..2026_"+version)
		require.NoError(t, os.Mkdir(folder, 0o700))
		write(t, filepath.Join(folder, "rules.yaml"), versioned(version))
		require.NoError(t, os.Symlink(filepath.Base(folder), filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	publish("v1")
	path := filepath.Join(dir, "rules.yaml")
	require.NoError(t, os.Symlink("..data/rules.yaml", path))
	p, _ := followed(t, policy.File(path))
	becomes(t, p, "v1")
	for _, version := range []string{"v2", "v3", "v4"} {
		publish(version)
		becomes(t, p, version)
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "..2026_v"+string(version[1]-1))))
	}
}

// BenchmarkFile measures the time until a changed file is in force, for each way to change it.
func BenchmarkFile(b *testing.B) {
	replace := func(path, version string) {
		write(b, path+".new", versioned(version))
		require.NoError(b, os.Rename(path+".new", path))
	}
	relink := func(path, version string) {
		write(b, path+version, versioned(version))
		require.NoError(b, os.Symlink(path+version, path+".new"))
		require.NoError(b, os.Rename(path+".new", path))
	}
	b.Run("change=write", func(b *testing.B) {
		benchChanges(b, func(path, version string) { write(b, path, versioned(version)) })
	})
	b.Run("change=rename", func(b *testing.B) { benchChanges(b, replace) })
	b.Run("change=link", func(b *testing.B) { benchChanges(b, relink) })
}

func benchChanges(b *testing.B, change func(path, version string)) {
	path := filepath.Join(b.TempDir(), "rules.yaml")
	write(b, path, versioned("v0"))
	p, _ := followed(b, policy.File(path))
	inForce := func(version string) {
		for p.Stats().Version != version {
			time.Sleep(100 * time.Microsecond)
		}
	}
	inForce("v0")
	var longest time.Duration
	for i := 1; b.Loop(); i++ {
		version, begin := fmt.Sprintf("v%d", i), time.Now()
		change(path, version)
		inForce(version)
		longest = max(longest, time.Since(begin))
	}
	b.ReportMetric(float64(longest)/1e6, "longest-ms")
}

func TestFileFollowsALinkToElsewhere(t *testing.T) {
	target := filepath.Join(t.TempDir(), "target.yaml")
	write(t, target, versioned("v1"))
	path := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.Symlink(target, path))
	p, _ := followed(t, policy.File(path))
	becomes(t, p, "v1")
	write(t, target, versioned("v2"))
	becomes(t, p, "v2")
}

func TestAFileThatIsOnlyTouchedIsNotLoadedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write(t, path, versioned("v1"))
	p, _ := followed(t, policy.File(path))
	becomes(t, p, "v1")
	for range 5 {
		write(t, path, versioned("v1"))
	}
	write(t, path, versioned("v2"))
	becomes(t, p, "v2")
	assert.Equal(t, uint64(3), p.Stats().Generation, "New's, v1 and v2")
}

func TestFollowLeavesNoGoroutineBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write(t, path, versioned("v1"))
	before := runtime.NumGoroutine()
	for range 10 {
		p, err := policy.New(nil, &policy.Options{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- policy.Follow(ctx, p, policy.File(path)) }()
		becomes(t, p, "v1")
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	}
	crowd.Gone(t, before+3) // Eventually has some goroutines; a leak would be ten
}

// scripted is a source returning given sets and errors.
type scripted struct {
	loads   []func() (*policy.Set, error)
	changes chan struct{}
}

func (s *scripted) Load(context.Context) (*policy.Set, error) {
	load := s.loads[0]
	if len(s.loads) > 1 {
		s.loads = s.loads[1:]
	}
	return load()
}

func (s *scripted) Changes(ctx context.Context) <-chan struct{} {
	out := make(chan struct{})
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.changes:
				out <- struct{}{}
			}
		}
	}()
	return out
}

func TestFollowKeepsTheLastGoodSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := func(version string) func() (*policy.Set, error) {
			return func() (*policy.Set, error) { return policy.Parse([]byte(versioned(version))) }
		}
		down := errors.New("the store is down")
		src := &scripted{changes: make(chan struct{}), loads: []func() (*policy.Set, error){
			func() (*policy.Set, error) { return nil, down },
			good("v1"),
			func() (*policy.Set, error) { return &policy.Set{Rules: make([]policy.Rule, 1)}, nil },
			func() (*policy.Set, error) { return nil, nil },
			good("v1"),
			good("v2"),
		}}
		p, _ := followed(t, src)
		synctest.Wait()
		require.ErrorIs(t, p.Stats().LastError, down)
		assert.Equal(t, uint64(1), p.Stats().Generation)
		for _, want := range []struct {
			version    string
			generation uint64
			failed     bool
		}{{"v1", 2, false}, {"v1", 2, true}, {"v1", 2, true}, {"v1", 2, false}, {"v2", 3, false}} {
			src.changes <- struct{}{}
			synctest.Wait()
			s := p.Stats()
			assert.Equal(t, want.version, s.Version)
			assert.Equal(t, want.generation, s.Generation)
			assert.Equal(t, want.failed, s.LastError != nil)
			assert.Equal(t, want.failed, !s.LastErrorAt.IsZero())
		}
	})
}

func TestFollowNeedsASource(t *testing.T) {
	p, err := policy.New(nil, nil)
	require.NoError(t, err)
	require.Error(t, policy.Follow(t.Context(), p, nil))
	require.PanicsWithError(t, "policy: this Policies is nil or zero: make one with New", func() { _ = policy.Follow(t.Context(), new(policy.Policies), policy.File("x")) })
}
