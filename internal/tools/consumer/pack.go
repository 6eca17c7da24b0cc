package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/weir-go/ratelimit/internal/tools/repo"
)

// packed is a file proxy for the published modules.
type packed struct {
	root    string // the repository's path
	dir     string // the folder for the proxy and for the modules that use it
	version string
	modules []repo.Module
}

func (p packed) repository() string { return filepath.Join(p.dir, "repository") }

func (p packed) proxy() string { return filepath.Join(p.dir, "proxy") }

// pack makes the proxy in dir.
func pack(root, dir string) (packed, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return packed{}, err
	}
	all, err := repo.Modules(root)
	if err != nil {
		return packed{}, err
	}
	p := packed{root: root, dir: dir}
	if p.version, err = repo.Version(all); err != nil {
		return p, err
	}
	tree, err := scratch(root, p.repository())
	if err != nil {
		return p, err
	}
	for _, m := range all {
		if !m.Published() {
			continue
		}
		if err := p.add(m, tree); err != nil {
			return p, err
		}
		p.modules = append(p.modules, m)
	}
	return p, nil
}

// scratch makes a repository in dir with all files in the work tree, except those ignored
// by git. It returns the id of their tree. The zip package needs a repository, because it
// cannot read a linked work tree, and uncommitted files must be included, too.
func scratch(root, dir string) (tree string, err error) {
	if _, err := repo.Run("", nil, "git", "init", "-q", dir); err != nil {
		return "", err
	}
	in := []string{"--git-dir", filepath.Join(dir, ".git"), "--work-tree", root}
	if _, err := repo.Run(root, nil, "git", append(in, "add", "-A", ".")...); err != nil {
		return "", err
	}
	tree, err = repo.Run(root, nil, "git", append(in, "write-tree")...)
	return strings.TrimSpace(tree), err
}

// add packs one module.
func (p packed) add(m repo.Module, tree string) error {
	escaped, err := module.EscapePath(m.Path())
	if err != nil {
		return err
	}
	folder := filepath.Join(p.proxy(), filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": p.version, "Time": time.Now().UTC()})
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(p.root, filepath.FromSlash(m.Dir), "go.mod"))
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"list": []byte(p.version + "\n"), p.version + ".info": info, p.version + ".mod": mod} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o666); err != nil {
			return err
		}
	}
	file, err := os.Create(filepath.Join(folder, p.version+".zip"))
	if err != nil {
		return err
	}
	defer file.Close()
	subdir := m.Dir
	if subdir == "." {
		subdir = ""
	}
	if err := zip.CreateFromVCS(file, module.Version{Path: m.Path(), Version: p.version}, p.repository(), tree, subdir); err != nil {
		return fmt.Errorf("%s: %w", m.Path(), err)
	}
	return file.Close()
}
