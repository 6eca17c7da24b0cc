package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// files returns the files of a repository with two modules. One requires the other.
func files() map[string]string {
	return map[string]string{
		"go.mod":                      "module example.org/root\n\ngo 1.25.0\n",
		"root.go":                     "package root\n\nconst Answer = 42\n",
		"example_test.go":             "package root_test\n\nimport (\n\t\"fmt\"\n\n\t\"example.org/root\"\n)\n\nfunc Example() { fmt.Println(root.Answer) }\n",
		"internal/in/in.go":           "package in\n",
		"nested/go.mod":               "module example.org/root/nested\n\ngo 1.25.0\n\nrequire example.org/root v0.1.0\n\nreplace example.org/root => ../\n",
		"nested/nested.go":            "package nested\n\nimport \"example.org/root\"\n\nconst Answer = root.Answer\n",
		".gitignore":                  "/ignored\n",
		"ignored/bad:name":            "x",
		"examples/quickstart":         "",
		"examples/quickstart/main.go": "package main\n\nimport (\n\t\"fmt\"\n\n\t\"example.org/root\"\n)\n\nfunc main() { fmt.Println(root.Answer) }\n",
	}
}

func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if text == "" {
			continue
		}
		file := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o777))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o666))
	}
	return dir
}

func TestModulesThatOthersCanUse(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	t.Setenv("GOPROXY", "off") // no other proxies than the test's own
	var out bytes.Buffer
	require.NoError(t, run(repository(t, files()), false, &out))
	assert.Contains(t, out.String(), "2 modules packed at v0.1.0\n")
	assert.Contains(t, out.String(), "example.org/root/nested: 1 package\n")
	assert.Contains(t, out.String(), "1 file of examples")
	assert.Contains(t, out.String(), "the program of example.org/root runs: 1 line\n")
}

// TestModulesThatOthersCannotUse makes changes that break no build in the repository.
func TestModulesThatOthersCannotUse(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs in CI, and with scripts/test -long")
	}
	t.Setenv("GOPROXY", "off")
	for name, test := range map[string]struct{ file, text, want string }{
		"a version that is no release":                      {"nested/go.mod", "module example.org/root/nested\n\ngo 1.25.0\n\nrequire example.org/root v0.0.0\n", "requires"},
		"a file name that a zip cannot hold":                {"bad:name", "x", "bad:name"},
		"two files whose names differ in case":              {"ROOT.go", "package root\n", "case-insensitive"},
		"a file that is ignored by git but used":            {"nested/nested.go", "package nested\n\nimport \"example.org/root/ignored\"\n\nvar X = ignored.X\n", "ignored"},
		"an import of another module without a requirement": {"root.go", "package root\n\nimport \"example.org/root/other\"\n\nvar X = other.X\n", "example.org/root/other"},
		"an example that needs other files":                 {"example_test.go", "package root_test\n\nvar X = helper()\n", "helper"},
	} {
		t.Run(name, func(t *testing.T) {
			all := files()
			all["ignored/ignored.go"] = "package ignored\n\nconst X = 1\n"
			all["other/go.mod"] = "module example.org/root/other\n\ngo 1.25.0\n"
			all["other/other.go"] = "package other\n\nconst X = 1\n"
			if name == "a version that is no release" {
				all["third/go.mod"] = "module example.org/root/third\n\ngo 1.25.0\n\nrequire example.org/root v0.1.0\n"
				all["third/third.go"] = "package third\n"
			}
			all[test.file] = test.text
			require.ErrorContains(t, run(repository(t, all), false, new(bytes.Buffer)), test.want)
		})
	}
}
