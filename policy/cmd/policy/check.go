package main

import (
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit/policy"
)

// checked is what check says of a file, as JSON.
type checked struct {
	File    string `json:"file"`
	Valid   bool   `json:"valid"`
	Version string `json:"version,omitempty"`
	Rules   int    `json:"rules"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Rule    string `json:"rule,omitempty"`
	Error   string `json:"error,omitempty"`
}

// check reads files, and says of each whether it is valid.
func (t *tool) check(files []string) (status int) {
	if len(files) == 0 {
		return t.usage("check needs a file")
	}
	var all []checked
	for _, file := range files {
		set, s, err := t.load(file)
		status = max(status, s)
		c := checked{File: file, Valid: err == nil}
		if err != nil {
			c.Error = err.Error()
			var e *policy.Error
			if errors.As(err, &e) {
				c.Line, c.Column, c.Rule = e.Line, e.Column, e.Rule
			}
		} else {
			c.Version, c.Rules = set.Version, len(set.Rules)
		}
		all = append(all, c)
	}
	if t.json {
		t.print(all)
		return status
	}
	for _, c := range all {
		if !c.Valid {
			fmt.Fprintln(t.errs, c.Error)
			continue
		}
		fmt.Fprintf(t.out, "%s: valid, %d rules, version %q\n", c.File, c.Rules, c.Version)
	}
	return status
}
