package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each hit is reported with its line and its phrase.
func TestPhrasesAreFoundInProseAlone(t *testing.T) {
	for _, c := range []struct {
		name, file, content string
		words               int
		hits                []string
	}{
		{"a noun clause", "a.go", "package a\n\n// b returns what is left.\nvar b int\n", 5, []string{"3 what"}},
		{"two in one comment", "a.go", "package a // what. Who\n", 2, []string{"1 what", "1 Who"}},
		{"a question", "a.go", "package a\n\n// What is left? Whose is it? Nothing.\n", 7, nil},
		{"a question, then a clause", "a.go", "package a\n\n// What is left? Only what was kept.\n", 7, []string{"3 what"}},
		{"a concession", "a.go", "package a // whatever the limit, but whatever comes\n", 6, []string{"1 whatever"}},
		{"who after its noun", "a.go", "package a\n\n// Callers who leave, and a caller, who waits.\n", 8, nil},
		{"who after its noun, in the next line", "a.go", "package a\n\n// Callers\n// who leave\n", 3, nil},
		{"who as a subject", "a.go", "package a\n\n// It ends. Who waits gets it. It goes to who waits, whoever it is.\n", 14, []string{"3 Who", "3 who", "3 whoever"}},
		{"speech", "a.go", "package a // It tells, SAID, heard and asking: not essays or tasks.\n", 10, []string{"1 tells", "1 SAID", "1 heard", "1 asking"}},
		{"pronouns", "a.go", "package a // those, that of, one that, ones that: not thoseness\n", 9, []string{"1 those", "1 that of", "1 one that", "1 ones that"}},
		{"a phrase over two lines", "a.go", "package a\n\n// the value, or that\n// of another, in\n// vain\n", 8, []string{"3 that of", "4 in vain"}},
		{"adverbs", "a.go", "package a // It takes note. Meanwhile nobody is as good as somebody: mistakes of ours.\n", 13, []string{
			"1 takes note", "1 Meanwhile", "1 nobody", "1 as good as", "1 somebody", "1 mistakes of ours"}},
		{"code in a comment", "a.go", "package a\n\n// b runs:\n//\n//\twhat says those\n//\n// and `what` and \"what\".\n", 4, nil},
		{"a list in a comment", "a.go", "package a\n\n//   - what is left\n", 3, []string{"3 what"}},
		{"a block comment", "a.go", "package a\n\n/* One\nwhat */\n", 2, []string{"4 what"}},
		{"a directive", "a.go", "package a\n\n//go:generate what\n", 0, nil},
		{"a program's output", "a.go", "package a\n\nfunc b() {\n\t// what\n\n\t// Output:\n\t// what says those\n}\n", 1, []string{"4 what"}},
		{"names in code", "a.go", "package a\n\nvar what, who = 1, 2\n", 0, nil},
		{"identifiers named by speech", "a.go", "package a\n\ntype askState struct{ toldBy, task int }\n\nfunc (a askState) essay(says int) { hearMe, _ := 1, 2; _ = hearMe }\n", 0,
			[]string{"3 identifier", "3 identifier", "5 identifier", "5 identifier"}},
		{"a text of the program", "a.go", "package a\n\nimport _ \"what/is/this\"\n\nvar b, c = \"what is that\", \"what\"\n", 0, []string{"5 what"}},
		{"a test's text", "a_test.go", "package a\n\nvar b = \"what is that\" // what\n", 1, []string{"3 what"}},
		{"Lua", "a.lua", "-- One,\n-- that of x.\nlocal b = '-- what' -- told\nlocal c = 2--what\n", 5, []string{"2 that of", "3 told"}},
		{"shell", "a.sh", "#!/bin/sh\n# what\necho '# what' \"${a# who}\" $# # who\n", 2, []string{"2 what", "3 who"}},
		{"shell by its first line", "a", "#!/usr/bin/env bash\n# what\n", 1, []string{"2 what"}},
		{"another program", "a", "#!/usr/bin/env python\n# what\n", 0, nil},
		{"neither", "a.txt", "what\n", 0, nil},
		{"a page", "a.md", "# What it is\n\nWhat is\nleft of `what` is [that\nof](what).\n\n```\nwhat\n```\n", 7, []string{"3 What", "4 that of"}},
		{"a table", "a.md", "| what | says |\n|---|---|\n| a | what |\n| who | x? |\n", 4, []string{"3 what"}},
		{"indented code", "a.md", "One:\n\n    what says\n\n- two\n    what\n", 3, []string{"6 what"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.content), 0o600))
			found, err := countFolder(dir)
			require.NoError(t, err)
			var hits []string
			for _, h := range found.hits {
				hits = append(hits, fmt.Sprint(h.line, " ", h.rule))
			}
			assert.ElementsMatch(t, c.hits, hits)
			words := 0
			for _, f := range found.folders {
				words += f.words
			}
			assert.Equal(t, c.words, words, "words")
		})
	}
}

func TestFiguresAreAddedByFolderAndByKind(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"a/a.go":             "package a\n\n// What is left.\nvar b = \"nobody is left\"\n",
		"a/a_test.go":        "package a // It says what is left.\n",
		"a/testdata/b.go":    "package b // what",
		"c/d/page.md":        "Those.\n",
		"c/d/script.lua":     "-- what",
		"c/.git/description": "#!/bin/sh\n# what",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	found, err := countFolder(dir)
	require.NoError(t, err)
	assert.Equal(t, map[string]*figures{
		"a":   {words: 8, hits: [len(rules)]int{2, 1, 0, 0}},
		"c/d": {words: 2, hits: [len(rules)]int{1, 0, 1, 0}},
	}, found.folders)
	assert.Equal(t, [len(kinds)]figures{
		goComments:     {words: 3, hits: [len(rules)]int{1, 0, 0, 0}},
		goTestComments: {words: 5, hits: [len(rules)]int{1, 1, 0, 0}},
		luaComments:    {words: 1, hits: [len(rules)]int{1, 0, 0, 0}},
		pages:          {words: 1, hits: [len(rules)]int{0, 0, 1, 0}},
		goStrings:      {words: 3, hits: [len(rules)]int{0, 0, 0, 1}},
	}, found.kinds)

	var out bytes.Buffer
	found.table(&out)
	assert.Regexp(t, `all but strings +10 +3 +1 +1 +0`, out.String())
	assert.Regexp(t, `for 1,000 words +300.00 +100.00 +100.00 +0.00`, out.String())
}

func TestWordsOfChainsAreMeasuredBesideTheModels(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.go"), []byte("package a\n\n// The end of that of which, for example, a part is kept: of b.\nvar told, b = 1, 2\n"), 0o600))
	found, err := countFolder(dir)
	require.NoError(t, err)
	var out bytes.Buffer
	found.chains(&out)
	assert.Regexp(t, `for 1,000 words +of +which +that +whose +for example`, out.String())
	assert.Regexp(t, `Go +214.29 +71.43 +71.43 +0.00 +71.43\n`, out.String())
	assert.Regexp(t, `models +15-29 `, out.String())
	assert.Contains(t, out.String(), "\n1 of 2 identifiers are named by speech\n")
}

// Invalid Go is an error. It must not count as a file without comments.
func TestAFileThatCannotBeReadFailsTheCount(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.go"), []byte("pack"), 0o600))
	_, err := countFolder(dir)
	assert.ErrorContains(t, err, "a.go:1:1")
	_, err = countFolder(filepath.Join(dir, "none"))
	assert.Error(t, err)
}
