package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/internal/micros"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
	"github.com/weir-go/ratelimit/policy/policysql"
)

// engines are the engines that check can check rules for. None needs its server.
var engines = map[string]func() policy.Engine{
	"memory": func() policy.Engine { return policy.Memory(nil) },
	"redis": func() policy.Engine {
		return func(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
			if b.Share > 0 {
				if _, _, err := micros.Shared(b.Limit); err != nil {
					return nil, err
				}
				return fair.New(b.Limit, &fair.Options[string]{Weight: b.Weight})
			}
			if _, _, err := micros.Figures(b.Limit, micros.MaxLog); err != nil {
				return nil, err
			}
			return ratelimit.New[string](b.Limit, nil)
		}
	},
	"sql": func() policy.Engine { return policysql.New(sql.OpenDB(noDatabase{}), nil) },
}

// engineNames returns the engines' names as text.
func engineNames() string { return strings.Join(slices.Sorted(maps.Keys(engines)), ", ") }

// noDatabase is a database that no check calls.
type noDatabase struct{}

func (noDatabase) Connect(context.Context) (driver.Conn, error) {
	return nil, errors.New("a check has no database")
}

func (noDatabase) Driver() driver.Driver { return nil }

// checked is check's result for a file, in JSON. Line, Column, Rule and Error come from the first error.
type checked struct {
	File    string     `json:"file"`
	Valid   bool       `json:"valid"`
	Version string     `json:"version,omitempty"`
	Rules   int        `json:"rules"`
	Line    int        `json:"line,omitempty"`
	Column  int        `json:"column,omitempty"`
	Rule    string     `json:"rule,omitempty"`
	Error   string     `json:"error,omitempty"`
	Errors  []oneError `json:"errors,omitempty"` // all errors

	Warnings []oneError `json:"warnings,omitempty"` // a valid file's
}

type oneError struct {
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Field  string `json:"field,omitempty"`
	Error  string `json:"error"`
}

// check reads files, and prints for each file whether it is valid, and its errors.
func (t *tool) check(files []string) (status int) {
	if len(files) == 0 {
		return t.usage("check needs a file")
	}
	var against []policy.Engine
	if t.engine != "" {
		against = append(against, engines[t.engine]())
	}
	var all []checked
	for _, file := range files {
		c := checked{File: file}
		data, err := t.read(file)
		if err != nil {
			status, c.Error = misuse, err.Error()
		} else {
			set, found := byhand.Check(file, data, against)
			c.see(set.(*policy.Set), found.([]*policy.Error))
		}
		if c.Valid = c.Error == ""; !c.Valid {
			status = max(status, differ)
		}
		all = append(all, c)
	}
	if t.json {
		t.print(all)
		return status
	}
	for _, c := range all {
		switch {
		case c.Valid:
			fmt.Fprintf(t.out, "%s: valid, %d rules, version %q\n", c.File, c.Rules, c.Version)
		case len(c.Errors) == 0: // the file could not be read
			fmt.Fprintln(t.errs, c.Error)
		}
		for _, e := range c.Errors {
			fmt.Fprintf(t.errs, "%s:%d:%d: %s\n", c.File, e.Line, e.Column, e.Error)
		}
		for _, e := range c.Warnings {
			fmt.Fprintf(t.errs, "%s:%d:%d: warning: %s\n", c.File, e.Line, e.Column, e.Error)
		}
	}
	return status
}

// see records the file's errors or warnings.
func (c *checked) see(set *policy.Set, found []*policy.Error) {
	if set != nil {
		c.Version, c.Rules, c.Warnings = set.Version, len(set.Rules), listed(found)
		return
	}
	c.Errors = listed(found)
	first := c.Errors[0]
	c.Line, c.Column, c.Rule, c.Error = first.Line, first.Column, first.Rule, c.File+": "+first.Error
}

// listed returns errors as they are printed. Errors about the whole file are placed at its beginning.
func listed(errs []*policy.Error) (all []oneError) {
	for _, e := range errs {
		all = append(all, oneError{max(1, e.Line), max(1, e.Column), e.Rule, e.Field, e.Error()})
	}
	return all
}
