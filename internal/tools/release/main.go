// Release releases all modules at one version. Run it by scripts/release.
//
// It works in a clone. There it sets the versions at which the modules require each other, moves
// the changelog's Unreleased section under the version, commits, and runs .ci/run. If that passes,
// one transaction of git moves the branch to the new commit and makes the tags. Nothing is pushed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/weir-go/ratelimit/internal/tools/repo"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("release: ")
	dir := flag.String("dir", ".", "folder of the repository")
	dry := flag.Bool("dry-run", false, "print the steps of the release, and change nothing")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: scripts/release [-dry-run] VERSION")
		flag.PrintDefaults()
	}
	flag.Parse()
	version := flag.Arg(0)
	// after the version, Parse does not read it as a flag
	if flag.NArg() == 2 && (flag.Arg(1) == "-dry-run" || flag.Arg(1) == "--dry-run") {
		*dry = true
	} else if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*dir, version, *dry, time.Now(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// release is a release in progress.
type release struct {
	root    string
	version string
	branch  string
	modules []repo.Module
	clone   string
}

func run(root, version string, dry bool, now time.Time, out io.Writer) error {
	r := release{root: root, version: version}
	if err := r.check(); err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	r.clone = filepath.Join(temp, "clone")
	if _, err := git("", "clone", "-q", "--no-hardlinks", r.root, r.clone); err != nil {
		return err
	}
	commit, err := r.commit(now)
	if err != nil {
		return err
	}
	changes, err := git(r.clone, "show", "--stat", "--format=%s", commit)
	if err != nil {
		return err
	}
	fmt.Fprint(out, changes, "\n")
	if dry {
		fmt.Fprintf(out, "would run .ci/run on this commit, move %s to it, and make the tags\n\n%s", r.branch, r.push())
		return nil
	}
	fmt.Fprintln(out, "running .ci/run on this commit")
	ci := exec.Command("bash", ".ci/run")
	ci.Dir, ci.Stdout, ci.Stderr = r.clone, out, out
	if err := ci.Run(); err != nil {
		return fmt.Errorf("nothing is released: .ci/run: %w", err)
	}
	if err := r.publish(commit); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s is at the release, and the tags are made. To publish it:\n\n%s", r.branch, r.push())
	return nil
}

// check returns an error if the repository cannot be released.
func (r *release) check() error {
	if semver.Canonical(r.version) != r.version || semver.Build(r.version) != "" {
		return fmt.Errorf("version %q is not of the form v1.2.3 or v1.2.3-rc.1", r.version)
	}
	if m := semver.Major(r.version); m != "v0" && m != "v1" {
		return fmt.Errorf("version %s: from v2 on, module paths end in the major version, and these do not", r.version)
	}
	var err error
	if r.modules, err = repo.Modules(r.root); err != nil {
		return err
	}
	if _, err := repo.Version(r.modules); err != nil {
		return err
	}
	if r.branch, err = git(r.root, "symbolic-ref", "--short", "HEAD"); err != nil {
		return fmt.Errorf("no branch is checked out: %w", err)
	}
	r.branch = strings.TrimSpace(r.branch)
	dirty, err := git(r.root, "status", "--porcelain")
	if err != nil {
		return err
	}
	if dirty != "" {
		return fmt.Errorf("the work tree is not clean:\n%s", dirty)
	}
	tags, err := git(r.root, "tag", "--list")
	if err != nil {
		return err
	}
	for tag := range strings.FieldsSeq(tags) {
		for _, m := range r.modules {
			if m.Published() && tag == m.Tag(r.version) {
				return fmt.Errorf("tag %s exists", tag)
			}
		}
		if semver.IsValid(tag) && semver.Compare(tag, r.version) > 0 && semver.Prerelease(tag) == "" {
			return fmt.Errorf("version %s is older than the release %s", r.version, tag)
		}
	}
	return nil
}

// commit makes the release commit in the clone.
func (r *release) commit(now time.Time) (string, error) {
	for _, m := range r.modules {
		siblings := repo.Siblings(m, r.modules)
		if len(siblings) == 0 {
			continue
		}
		for _, s := range siblings {
			if err := m.Mod.AddRequire(s.Mod.Path, r.version); err != nil {
				return "", err
			}
		}
		text, err := m.Mod.Format()
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(r.clone, filepath.FromSlash(m.Dir), "go.mod"), text, 0o666); err != nil {
			return "", err
		}
	}
	file := filepath.Join(r.clone, "CHANGELOG.md")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	changed, err := moveUnreleased(string(text), r.version, now)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(file, []byte(changed), 0o666); err != nil {
		return "", err
	}
	// The committer is the repository's, because a clone does not have the repository's settings.
	var who []string
	for _, key := range []string{"user.name", "user.email"} {
		if value, err := git(r.root, "config", key); err == nil {
			who = append(who, "-c", key+"="+strings.TrimSpace(value))
		}
	}
	if _, err := git(r.clone, append(who, "commit", "-q", "-a", "-m", "Release "+r.version)...); err != nil {
		return "", err
	}
	id, err := git(r.clone, "rev-parse", "HEAD")
	return strings.TrimSpace(id), err
}

// tags returns a release's tags, the root module's first.
func (r *release) tags() []string {
	var tags []string
	for _, m := range r.modules {
		if m.Published() {
			tags = append(tags, m.Tag(r.version))
		}
	}
	return tags
}

// publish moves the branch to the commit, and makes all tags.
func (r *release) publish(commit string) error {
	if dirty, err := git(r.root, "status", "--porcelain"); err != nil || dirty != "" {
		return errors.Join(fmt.Errorf("nothing is released: the work tree has changed since:\n%s", dirty), err)
	}
	if _, err := git(r.root, "fetch", "-q", "--no-tags", r.clone, commit); err != nil {
		return err
	}
	old, err := git(r.root, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if _, err := git(r.root, "merge", "-q", "--ff-only", commit); err != nil {
		return fmt.Errorf("nothing is released: %s has moved since: %w", r.branch, err)
	}
	var updates strings.Builder
	for _, tag := range r.tags() {
		fmt.Fprintf(&updates, "create refs/tags/%s %s\n", tag, commit)
	}
	c := exec.Command("git", "update-ref", "--stdin") // in one transaction
	c.Dir, c.Stdin = r.root, strings.NewReader(updates.String())
	if output, err := c.CombinedOutput(); err != nil {
		_, undo := git(r.root, "reset", "-q", "--keep", strings.TrimSpace(old))
		return errors.Join(fmt.Errorf("nothing is released: the tags: %w\n%s", err, output), undo)
	}
	return nil
}

// push returns the command to push the whole release at once, because a release's modules require each other.
func (r *release) push() string {
	return fmt.Sprintf("    git push --atomic origin %s %s\n", r.branch, strings.Join(r.tags(), " "))
}

func git(dir string, args ...string) (string, error) { return repo.Run(dir, nil, "git", args...) }
