package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/weir-go/ratelimit/internal/tools/repo"
)

// use fetches each module by name into an empty module, and builds the repository's packages and examples.
func (p packed) use(out io.Writer) error {
	env, err := p.env()
	if err != nil {
		return err
	}
	packages := make(map[string][]string) // by module
	for _, m := range p.modules {
		if packages[m.Path()], err = p.fetch(m, env); err != nil {
			return fmt.Errorf("%s cannot be used: %w", m.Path(), err)
		}
		fmt.Fprintf(out, "%s: %s\n", m.Path(), count(len(packages[m.Path()]), "package"))
	}
	return errors.Join(p.build(packages, env, out), p.programs(env, out))
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprint(n, " ", what)
}

// env returns the environment for a user who has none of this repository's modules.
func (p packed) env() ([]string, error) {
	text, err := repo.Run(p.dir, nil, "go", "env", "GOPROXY", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 2 {
		return nil, fmt.Errorf("go env answers %q", text)
	}
	// other modules come from this machine's cache if possible
	proxies := []string{fileURL(p.proxy()), fileURL(filepath.Join(lines[1], "cache", "download")), lines[0]}
	return []string{
		"GOPROXY=" + strings.Join(proxies, ","), "GOMODCACHE=" + filepath.Join(p.dir, "cache"),
		"GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=", "GOFLAGS=-mod=mod -trimpath", "GOWORK=off",
		"GODEBUG=goindex=0", // without this, an index of modules left in the build cache by another run would hide their packages
	}, nil
}

func fileURL(dir string) string {
	return "file://" + path.Join("/", filepath.ToSlash(dir))
}

// get makes an empty module in dir, unless there is one, and runs go get in it.
func get(dir string, env []string, args ...string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		if _, err := repo.Run(dir, env, "go", "mod", "init", "example.com/consumer"); err != nil {
			return err
		}
	}
	_, err := repo.Run(dir, env, "go", append([]string{"get"}, args...)...)
	return err
}

// fetch makes a module requiring only m. It returns m's commands, and the packages that other modules can import.
func (p packed) fetch(m repo.Module, env []string) ([]string, error) {
	dir := filepath.Join(p.dir, "fetch", path.Base(m.Path()))
	if err := get(dir, env, m.Path()+"@"+p.version); err != nil {
		return nil, err
	}
	// This fails if m's packages import a package that cannot be found.
	text, err := repo.Run(dir, env, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{$.ImportPath}}{{end}}", m.Path()+"/...")
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(text) {
		owner, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if owner == m.Path() && !strings.Contains(name+"/", "/internal/") && !strings.Contains(name, "/examples/") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("it has no packages")
	}
	return names, nil
}

// build compiles all packages and their examples. It also compiles examples/servers without replace, as for a user
// whose program begins with this example. All are in one module, so that other modules are compiled only once.
func (p packed) build(packages map[string][]string, env []string, out io.Writer) error {
	dir := filepath.Join(p.dir, "build")
	edit, want, all := []string{"mod", "edit"}, []string(nil), []string(nil)
	for _, m := range p.modules {
		edit = append(edit, "-dropreplace="+m.Path())
		want = append(want, m.Path()+"@"+p.version)
	}
	servers := filepath.Join(p.root, "examples", "servers")
	if _, err := os.Stat(servers); err == nil {
		if err := os.CopyFS(dir, os.DirFS(servers)); err != nil {
			return err
		}
		if _, err := repo.Run(dir, env, "go", edit...); err != nil {
			return err
		}
	}
	if err := get(dir, env, want...); err != nil {
		return err
	}
	examples := 0
	for _, m := range p.modules {
		all = append(all, packages[m.Path()]...)
		for _, name := range packages[m.Path()] {
			from := filepath.Join(p.root, filepath.FromSlash(m.Dir), filepath.FromSlash(strings.TrimPrefix(name, m.Path())))
			to := filepath.Join(dir, "examples", filepath.FromSlash(strings.TrimPrefix(name, p.modules[0].Path())))
			n, err := copyExamples(from, to)
			if err != nil {
				return err
			}
			examples += n
		}
	}
	// list -export compiles and links nothing; tests other than examples run in the repository
	export := []string{"list", "-export", "-f", "{{.Export}}"}
	for _, args := range [][]string{append(all, "./..."), {"-test", "./examples/..."}} {
		if _, err := repo.Run(dir, env, "go", append(export, args...)...); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "all packages, %s and examples/servers are built\n", count(examples, "file")+" of examples")
	return err
}

// copyExamples copies the files with a package's examples.
func copyExamples(from, to string) (n int, err error) {
	files, err := filepath.Glob(filepath.Join(from, "example*_test.go"))
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		if err := errors.Join(os.MkdirAll(to, 0o777), os.WriteFile(filepath.Join(to, filepath.Base(file)), text, 0o666)); err != nil {
			return 0, err
		}
	}
	return len(files), nil
}

// programs runs the two programs that the documents show to a new user: the quickstart, and the
// command policy. It runs the command as a tool, because go install refuses a module with a replace.
func (p packed) programs(env []string, out io.Writer) error {
	dir := filepath.Join(p.dir, "build")
	for _, m := range p.modules {
		var output string
		var err error
		switch m.Dir {
		case ".":
			output, err = repo.Run(dir, env, "go", "run", m.Path()+"/examples/quickstart")
		case "policy":
			if err = get(dir, env, "-tool", m.Path()+"/cmd/policy@"+p.version); err == nil {
				output, err = repo.Run(dir, env, "go", "tool", "policy", "check", filepath.Join(p.root, "examples/servers/gateway/rules.yaml"))
			}
		default:
			continue
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "the program of %s runs: %s\n", m.Path(), count(strings.Count(output, "\n"), "line"))
	}
	return nil
}

// remove removes a folder with a module cache, although the cache's folders are read-only.
func remove(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o755)
		}
		return nil
	})
	_ = os.RemoveAll(dir)
}
