package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

var goBlock = regexp.MustCompile("(?s)```go\n(.*?)```")

// squeeze removes indentation, because a document may indent copied code differently.
func squeeze(code string) string {
	var lines []string
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// compiled returns the repository's Go code except the library's own: examples, proofs and tests.
func compiled(t *testing.T) string {
	var code strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		if strings.HasSuffix(path, "_test.go") || strings.Contains(path, "examples") || strings.Contains(path, "proofs") {
			text, err := os.ReadFile(path)
			code.WriteString(squeeze(string(text)) + "\n")
			return err
		}
		return nil
	}))
	return code.String()
}

// TestCodeInDocumentsIsCompiled compares the code in README.md and the
// documents with code compiled and run elsewhere. It must be an exact copy.
func TestCodeInDocumentsIsCompiled(t *testing.T) {
	documents, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	modules, err := filepath.Glob("*/README.md")
	require.NoError(t, err)
	code := compiled(t)
	blocks := 0
	for _, document := range append(append(documents, modules...), "README.md") {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, block := range goBlock.FindAllStringSubmatch(string(text), -1) {
			blocks++
			assert.True(t, strings.Contains(code, squeeze(block[1])), "%s has code that is not in any example or test:\n%s", document, block[1])
		}
	}
	assert.Positive(t, blocks)
}

// flagOfTests matches the pattern of -run, -bench or -fuzz in a command.
var flagOfTests = regexp.MustCompile(`-(?:run|bench|fuzz) (?:'([^']+)'|([\w.|^$]+))`)

// TestCommandsInDocumentsRunTests checks the patterns in documented go test commands. Each alternative must
// match a test, a benchmark or a fuzz target. So whoever renames a test must change the commands, too.
func TestCommandsInDocumentsRunTests(t *testing.T) {
	names := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w+)`).FindAllStringSubmatch(compiled(t), -1)
	patterns := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range flagOfTests.FindAllStringSubmatch(string(text), -1) {
			for _, pattern := range strings.Split(match[1]+match[2], "|") {
				if pattern == "^$" || pattern == "." {
					continue
				}
				patterns++
				found := regexp.MustCompile(pattern).MatchString
				assert.True(t, slices.ContainsFunc(names, func(name []string) bool { return found(name[1]) }), "%s: %s matches no test", path, match[0])
			}
		}
		return err
	}))
	assert.Positive(t, patterns)
}

// TestReadmeIsShort limits README.md to a few minutes' reading.
func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(strings.Fields(string(text))), 1100)
}

// TestPagesAreShort counts the words of all pages for users. Each fact should stand on one page, and other pages link it.
func TestPagesAreShort(t *testing.T) {
	words := 0
	eachPage(t, func(page, text string) {
		if forUsers(page) {
			words += len(strings.Fields(text))
		}
	})
	assert.LessOrEqual(t, words, 32_000)
}

// forUsers reports whether a page is documentation for users.
func forUsers(page string) bool {
	return !strings.Contains(page, "internal/") && page != "CONTRIBUTING.md" && page != "CHANGELOG.md"
}

var (
	anyCode  = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	link     = regexp.MustCompile(`\[[^\[\]]*\]\(([^)]*)\)`)
	nonWords = regexp.MustCompile(`[^\w\- ]`)
)

// TestLinksInDocumentsLeadSomewhere follows links within the repository. They must lead to existing files and headings.
func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	anchors := map[string]map[string]bool{}
	type use struct{ page, target string }
	var uses []use
	eachPage(t, func(page, text string) {
		anchors[page] = anchorsOf(text)
		for _, m := range regexp.MustCompile(`\]\(([^):]+)\)`).FindAllStringSubmatch(anyCode.ReplaceAllString(text, ""), -1) {
			uses = append(uses, use{page, m[1]})
		}
	})
	for _, u := range uses {
		file, anchor, _ := strings.Cut(u.target, "#")
		if file = filepath.Join(filepath.Dir(u.page), file); strings.HasPrefix(u.target, "#") {
			file = u.page
		}
		info, err := os.Stat(file)
		if !assert.NoError(t, err, "a link in %s", u.page) || anchor == "" {
			continue
		}
		if info.IsDir() {
			file = filepath.Join(file, "README.md")
		}
		assert.True(t, anchors[file][anchor], "%s has a link to %s, where no heading is #%s", u.page, file, anchor)
	}
}

// eachPage calls f with the path and the text of each page of the repository.
func eachPage(t *testing.T, f func(page, text string)) {
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		f(path, string(text))
		return err
	}))
}

// anchorsOf returns a page's anchors. Some stand in the page, and GitHub derives others from headings.
func anchorsOf(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, m := range regexp.MustCompile(`<a id="([^"]+)">`).FindAllStringSubmatch(text, -1) {
		anchors[m[1]] = true
	}
	text = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		heading := nonWords.ReplaceAllString(strings.ToLower(m[1]), "")
		anchors[strings.ReplaceAll(heading, " ", "-")] = true
	}
	return anchors
}

// TestTermsAreLinkedWhereTheyFirstStand checks that pages for users link the glossary's terms, if these have anchors.
// The link belongs where a term first stands outside code, headings, other links and descriptions of metrics.
func TestTermsAreLinkedWhereTheyFirstStand(t *testing.T) {
	contributing, err := os.ReadFile("CONTRIBUTING.md")
	require.NoError(t, err)
	anchors := map[string]bool{}
	for _, m := range regexp.MustCompile(`\| <a id="([\w-]+)"></a>(\S+) \|`).FindAllStringSubmatch(string(contributing), -1) {
		assert.Equal(t, m[2], m[1], "an anchor of the glossary")
		anchors[m[1]] = true
	}
	for _, term := range []string{"stack", "shadow", "stand-in", "lease", "grant", "regain"} {
		assert.Contains(t, anchors, term)
	}
	other := regexp.MustCompile(`(?m)^(    |#|\| \x60ratelimit_).*$`)
	eachPage(t, func(page, text string) {
		if !forUsers(page) {
			return
		}
		text = anyCode.ReplaceAllString(other.ReplaceAllString(text, ""), "")
		for term := range anchors {
			prose := link.ReplaceAllStringFunc(text, func(s string) string {
				if strings.HasSuffix(s, "CONTRIBUTING.md#"+term+")") {
					return "LINKED "
				}
				return ""
			})
			first := regexp.MustCompile(`(?i)LINKED|\b` + term + `(s|d|ed|ing)?\b`).FindString(prose)
			assert.Contains(t, []string{"", "LINKED"}, first, "%s does not link %s where it first stands", page, term)
		}
	})
}

// The examples in docs/recipes.md.

func Example_pacing() {
	ctx := context.Background()
	pace := ratelimit.Must(ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(100), 1), nil))
	start := time.Now()
	for range 4 { // the job's steps
		if err := pace.Wait(ctx, 1); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("four steps took at least 30ms:", time.Since(start) >= 30*time.Millisecond)
	// Output: four steps took at least 30ms: true
}

func Example_boundedQueue() {
	ctx := context.Background()
	backend := ratelimit.Must(ratelimit.New[string](ratelimit.LeakyBucket(ratelimit.PerMinute(1), 2), nil))
	fmt.Println(backend.Wait(ctx, "backend", 1)) // Wait reserves the backend for a minute
	fmt.Println(backend.Allow("backend", 1))     // only this process may wait
	err := backend.Wait(ctx, "backend", 1)
	fmt.Println(errors.Is(err, ratelimit.ErrLimited))
	// Output:
	// <nil>
	// true
	// true
}

// Signup shows code that uses a limiter: it takes the limiter as an interface.
type Signup struct {
	Limit ratelimit.Limiter[string]
}

func (s *Signup) SendCode(phone string) error {
	if !s.Limit.Allow(phone, 1) {
		return errors.New("try again later")
	}
	return nil
}

func TestSignupSendsThreeCodesAnHour(t *testing.T) {
	clock := new(ratelimittest.Clock)
	limit, err := ratelimit.New(ratelimit.SlidingLog(ratelimit.PerHour(3)), &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	signup := &Signup{Limit: limit}

	for range 3 {
		require.NoError(t, signup.SendCode("555-0100"))
	}
	require.Error(t, signup.SendCode("555-0100"))
	clock.Advance(time.Hour)
	require.NoError(t, signup.SendCode("555-0100"))
}

func TestAnExportWritesTenRowsASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), nil))
		start := time.Now()
		for range 101 {
			require.NoError(t, limit.Wait(t.Context(), "export", 1))
		}
		assert.Equal(t, 10*time.Second, time.Since(start)) // exactly, because a bubble's clock runs only while all goroutines sleep
	})
}

// admitted counts how many of a greedy key's requests pass in the first minute, and the maximum in any minute.
func admitted(limit ratelimit.Limit) (first, most int) {
	clock := new(ratelimittest.Clock)
	l := ratelimit.Must(ratelimit.NewSingle(limit, &ratelimit.Options[struct{}]{Clock: clock}))
	var passed []time.Duration
	for clock.Now() < 10*time.Minute {
		for l.Allow(1) {
			passed = append(passed, clock.Now())
		}
		clock.Advance(10 * time.Millisecond)
	}
	for i, begin := range passed {
		n := 0
		for _, at := range passed[i:] {
			if at-begin < time.Minute {
				n++
			}
		}
		if i == 0 {
			first = n
		}
		most = max(most, n)
	}
	return first, most
}

// The figures in docs/recipes.md, "Choose a burst".
func TestHowManyPassInAMinute(t *testing.T) {
	for _, row := range []struct {
		limit       ratelimit.Limit
		first, most int
	}{
		{ratelimit.TokenBucket(ratelimit.PerMinute(100), 100), 199, 199},
		{ratelimit.TokenBucket(ratelimit.PerMinute(50), 50), 99, 99},
		{ratelimit.TokenBucket(ratelimit.PerMinute(91), 10), 100, 100},
		{ratelimit.TokenBucket(ratelimit.PerMinute(100), 1), 100, 100},
		{ratelimit.SlidingLog(ratelimit.PerMinute(100)), 100, 100},
		{ratelimit.FixedWindow(ratelimit.PerMinute(100)), 100, 100},
	} {
		first, most := admitted(row.limit)
		assert.Equal(t, row.first, first, "%v", row.limit)
		assert.Equal(t, row.most, most, "%v", row.limit)
	}
}

// TestErrorsInLogsHaveOneName checks that all packages log errors
// under one attribute, so that one search of the logs finds them.
func TestErrorsInLogsHaveOneName(t *testing.T) {
	const name, others = `"error"`, ` "err" "cause" "Error" "failure_cause" `
	found := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			for _, arg := range call.Args {
				if lit, ok := arg.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					assert.NotContains(t, others, " "+lit.Value+" ", "%s: an error's name in logs is %s", files.Position(lit.Pos()), name)
					if lit.Value == name {
						found++
					}
				}
			}
			return true
		})
		return nil
	}))
	assert.GreaterOrEqual(t, found, 8, "the lines of edge, failover and policy")
}
