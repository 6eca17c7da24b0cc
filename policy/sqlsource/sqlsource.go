// Package sqlsource reads package policy's rules from a database, from its tables rate_limit_rule and rate_limit_setting.
//
//	go policy.Follow(ctx, policies, sqlsource.New(db, nil))
//
// [Migration] returns the statements to create the tables. An older table without the column more gets it by
//
//	ALTER TABLE rate_limit_rule ADD COLUMN more text NOT NULL DEFAULT ''
//
// in PostgreSQL. The files in migrations end with the other dialects' statements. A row with an empty plan is a
// rule. A row with a plan is the plan's limit or, with a share, the weight for the plan's keys. Rules are sorted by
// name. The setting kill_switch is true or false; attributes lists the program's attributes, separated by commas.
// There are no lists: a value such as "@bad" in match_attributes is an error in this field. While the database is
// down or a row is wrong, the last good rules stay in force. The kill switch is read even if a row is wrong.
package sqlsource

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
	"github.com/weir-go/ratelimit/policy/internal/jsontree"
	"github.com/weir-go/ratelimit/policy/internal/mark"
	"github.com/weir-go/ratelimit/policy/internal/poll"
	"github.com/weir-go/ratelimit/policy/internal/sqltext"
	"github.com/weir-go/ratelimit/policy/internal/words"
	"github.com/weir-go/ratelimit/sqllimit"
)

// Options configure [New]. Nil and the zero Options select the defaults.
type Options struct {
	// Dialect is the database's dialect: one of package sqllimit, or [SQLite]. It defaults to PostgreSQL.
	Dialect sqllimit.Dialect
	// Poll is the time between two reads of the versions. It defaults to 1 s. All rules are read every 30 s.
	Poll time.Duration
	// Timeout bounds each query. It defaults to 5 s.
	Timeout time.Duration
}

// New returns the source. The source's Load reports a nil db or wrong options.
func New(db *sql.DB, opts *Options) policy.Source {
	s := &source{db: db}
	if opts != nil {
		s.Options = *opts
	}
	s.invalid = cmp.Or(
		sqltext.Check("policy/sqlsource: Options.Dialect", uint8(s.Dialect)),
		optional.NotNegative("policy/sqlsource: Options.Poll", s.Poll, "the default"),
		optional.NotNegative("policy/sqlsource: Options.Timeout", s.Timeout, "the default"),
	)
	s.Poll, s.Timeout = cmp.Or(max(0, s.Poll), time.Second), cmp.Or(max(0, s.Timeout), 5*time.Second)
	return s
}

type source struct {
	db *sql.DB
	Options
	invalid error // about the options
}

// Validated marks the sets returned by Load as valid.
func (*source) Validated() (m mark.Validated) { return m }

var errNoDB = optional.Nil("policy/sqlsource: New: db")

// reload is the time until all rules are read again although the versions have
// not changed. The versions may come from another replica than the rules.
const reload = 30 * time.Second

// maxRules is the maximum number of rules, as in package policy.
const maxRules = 10_000

// Changes polls the versions. It also sends after a failure, so that the failure is reported.
func (s *source) Changes(ctx context.Context) <-chan struct{} {
	changes := make(chan struct{}, 1)
	last, signalled := s.fingerprint(ctx), time.Now()
	go func() {
		defer close(changes)
		poll.Every(ctx, s.Poll, func() {
			now := s.fingerprint(ctx)
			if ctx.Err() == nil && (now != last || time.Since(signalled) >= reload) {
				last, signalled = now, time.Now()
				poll.Signal(changes)
			}
		})
	}()
	return changes
}

// fingerprint returns a text that changes when the rules may have
// changed. If the database fails, fingerprint returns the error's text.
func (s *source) fingerprint(ctx context.Context) string {
	if s.db == nil {
		return errNoDB.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	tx, err := s.db.BeginTx(ctx, s.snapshot()) // without autocommit, a lone statement would leave a transaction open
	if err != nil {
		return "error: " + err.Error()
	}
	defer tx.Rollback() // the transaction only reads
	var rows, highest, sum, kill, attributes sql.NullString
	err = tx.QueryRowContext(ctx, `SELECT COUNT(*), MAX(version), SUM(version),
		(SELECT value FROM rate_limit_setting WHERE name = 'kill_switch'),
		(SELECT value FROM rate_limit_setting WHERE name = 'attributes') FROM rate_limit_rule`).Scan(&rows, &highest, &sum, &kill, &attributes)
	if err != nil {
		return "error: " + err.Error()
	}
	return fmt.Sprintf("%q %q %q %q %q", rows.String, highest.String, sum.String, kill.String, attributes.String)
}

// Load reads the rules in one transaction, so that all come from the same instant.
func (s *source) Load(ctx context.Context) (*policy.Set, error) {
	if s.db == nil {
		return nil, errNoDB
	}
	if s.invalid != nil {
		return nil, s.invalid
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	tx, err := s.db.BeginTx(ctx, s.snapshot())
	if err != nil {
		return nil, fmt.Errorf("policy/sqlsource: %w", err)
	}
	defer tx.Rollback() // the transaction only reads
	kill, err := setting(ctx, tx, `SELECT value FROM rate_limit_setting WHERE name = 'kill_switch'`)
	if err != nil {
		return nil, err
	}
	on, err := killSwitch(kill)
	if err != nil {
		return nil, err
	}
	set, err := s.read(ctx, tx)
	if err == nil {
		set.KillSwitch = on
		err = byhand.Validate(set)
	}
	if err != nil {
		return nil, &mark.Switched{On: on, Err: err}
	}
	return set, nil
}

// snapshot returns the options for a transaction that reads all rows at one instant. SQLite's transactions do so by default.
func (s *source) snapshot() *sql.TxOptions {
	if s.Dialect == SQLite {
		return nil
	}
	return &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
}

// read reads everything but the kill switch, which Load has already read.
func (s *source) read(ctx context.Context, tx *sql.Tx) (*policy.Set, error) {
	set := &policy.Set{Rules: []policy.Rule{}}
	attributes, err := setting(ctx, tx, `SELECT value FROM rate_limit_setting WHERE name = 'attributes'`)
	if err != nil {
		return nil, err
	}
	set.Attributes = listOf(attributes, ",")
	q := func(name string) string { return sqltext.Quote(uint8(s.Dialect), name) }
	rows, err := tx.QueryContext(ctx, `SELECT name, plan, description, match_route, match_attributes, match_more, allow, `+q("key")+`, `+q("limit")+`,
		overrides, share, instead, limit_from, notify, cost, more, optional, shadow, is_active, changed_by, version FROM rate_limit_rule ORDER BY name, plan`)
	if err != nil {
		return nil, fmt.Errorf("policy/sqlsource: rate_limit_rule: %w", err)
	}
	defer rows.Close()
	highest, changed := int64(0), int64(0) // changed is the version of the row with the last rule's ChangedBy
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.name, &r.plan, &r.description, &r.route, &r.attributes, &r.more, &r.allow, &r.key, &r.limit,
			&r.overrides, &r.share, &r.instead, &r.limitFrom, &r.notify, &r.cost, &r.words, &r.optional, &r.shadow, &r.active, &r.changedBy, &r.version); err != nil {
			return nil, fmt.Errorf("policy/sqlsource: rate_limit_rule: %w", err)
		}
		highest = max(highest, r.version)
		if err := r.addTo(set); err != nil {
			return nil, err
		}
		if r.plan == "" {
			changed = 0
		}
		if r.changedBy != "" && r.version > changed {
			set.Rules[len(set.Rules)-1].ChangedBy, changed = r.changedBy, r.version
		}
	}
	set.Version = fmt.Sprintf("sql:%d", highest)
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("policy/sqlsource: rate_limit_rule: %w", err)
	}
	return set, nil
}

// setting returns a setting's value, or "" if there is none.
func setting(ctx context.Context, tx *sql.Tx, query string) (string, error) {
	var value sql.NullString
	if err := tx.QueryRowContext(ctx, query).Scan(&value); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("policy/sqlsource: rate_limit_setting: %w", err)
	}
	return value.String, nil
}

func killSwitch(value string) (bool, error) {
	switch value {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	}
	return false, &policy.Error{Field: "rate_limit_setting.kill_switch", Err: fmt.Errorf("%q, want true or false", value)}
}

// row is a row in rate_limit_rule.
type row struct {
	name, plan, description, route, attributes, more, key, limit, overrides, instead, limitFrom, notify, cost, words, changedBy string
	allow, optional, shadow, active                                                                                             bool
	version, share                                                                                                              int64
}

func (r *row) wrong(column string, err error) error {
	name := r.name
	if len(name) > 128 || ratelimit.Unlimited().Named(name).Validate() != nil { // an invalid name may be any text: the error leaves it out
		name = ""
	}
	return &policy.Error{Rule: name, Field: "rate_limit_rule." + column, Err: err}
}

// addTo adds the row to a set. If the set's last rule has the row's name, the row belongs to it.
func (r *row) addTo(s *policy.Set) error {
	var limit ratelimit.Limit
	if !r.allow && !(r.plan != "" && r.share != 0) || r.limit != "" {
		var err error
		if limit, err = ratelimit.ParseLimit(r.limit); err != nil {
			return r.wrong("limit", err)
		}
	}
	if r.share < 0 || r.share > math.MaxInt32 {
		return r.wrong("share", fmt.Errorf("%d, want a weight from 1, or 0 for none", r.share))
	}
	if r.plan != "" {
		return r.addPlan(s, limit)
	}
	if len(s.Rules) == maxRules {
		return &policy.Error{Field: "rate_limit_rule", Err: fmt.Errorf("more than %d rules", maxRules)}
	}
	rule := policy.Rule{
		Name: r.name, Description: r.description, Key: listOf(r.key, ","), Allow: r.allow, Limit: limit, Share: int(r.share),
		Instead: listOf(r.instead, ","), LimitFrom: r.limitFrom, Notify: listOf(r.notify, ","),
		Optional: r.optional, Shadow: r.shadow, Disabled: !r.active,
	}
	rule.Match.Route = listOf(r.route, "\n")
	if err := r.structured(&rule); err != nil {
		return err
	}
	if err := r.furtherFields(&rule); err != nil {
		return err
	}
	s.Rules = append(s.Rules, rule)
	return nil
}

// addPlan adds a plan's limit or weight to its rule. The rule's row precedes the plan's.
func (r *row) addPlan(s *policy.Set, limit ratelimit.Limit) error {
	last := len(s.Rules) - 1
	if last < 0 || s.Rules[last].Name != r.name {
		return r.wrong("plan", fmt.Errorf("the plan %q is of a rule that has no row with an empty plan", r.plan))
	}
	if !r.active {
		return nil
	}
	rule := &s.Rules[last]
	switch {
	case r.share == 0:
		if rule.Plans == nil {
			rule.Plans = map[string]ratelimit.Limit{}
		}
		rule.Plans[r.plan] = limit
	case r.limit != "":
		return r.wrong("share", fmt.Errorf("the plan %q has both limit %v and share %d", r.plan, limit, r.share))
	default:
		if rule.Shares == nil {
			rule.Shares = map[string]int{}
		}
		rule.Shares[r.plan] = int(r.share)
	}
	return nil
}

// structured reads the columns whose text is JSON or a list.
func (r *row) structured(rule *policy.Rule) error {
	if r.attributes != "" {
		var attributes map[string]values
		if err := decode(r.attributes, &attributes); err != nil {
			return r.wrong("match_attributes", err)
		}
		rule.Match.Attributes = lists(attributes)
	}
	if r.more != "" {
		var more struct {
			Not            map[string]notValues
			Prefix, Suffix map[string]values
			Absent         values
		}
		if err := decode(r.more, &more, "not", "prefix", "suffix", "absent"); err != nil {
			return r.wrong("match_more", err)
		}
		rule.Match.Prefix, rule.Match.Suffix, rule.Match.Absent = lists(more.Prefix), lists(more.Suffix), more.Absent
		for name, values := range more.Not {
			if err := values.addTo(&rule.Match, name); err != nil {
				return r.wrong("match_more", err)
			}
		}
	}
	if r.overrides != "" {
		var overrides []struct {
			policy.Override
			Key values `json:"key"`
		}
		if err := decode(r.overrides, &overrides, "key", "limit", "share", "from", "until"); err != nil {
			return r.wrong("overrides", err)
		}
		for _, o := range overrides {
			o.Override.Key = o.Key
			rule.Overrides = append(rule.Overrides, o.Override)
		}
	}
	if r.cost != "" {
		rule.Cost = policy.Cost{Attribute: r.cost}
		if n, err := strconv.Atoi(r.cost); err == nil {
			rule.Cost = policy.Cost{Number: n}
		}
		if err := byhand.CheckCost(rule.Cost); err != nil {
			return r.wrong("cost", err)
		}
	}
	return nil
}

// furtherFields reads the column more: a rule's fields without a column of their own, as in a JSON file.
func (r *row) furtherFields(rule *policy.Rule) error {
	if r.words == "" {
		return nil
	}
	fields := map[string]json.RawMessage{}
	if err := decode(r.words, &fields); err != nil {
		return r.wrong("more", err)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(words.Names(), name) {
			return r.wrong("more", fmt.Errorf("a field that is none of %s", strings.Join(words.Names(), ", ")))
		}
	}
	// The parser for files reads the fields, in a rule with only these fields, a name and a limit.
	fields["name"], fields["limit"] = json.RawMessage(`"a"`), json.RawMessage(`"fixed-window 1000000/h"`)
	text, err := json.Marshal(map[string]any{"rules": []any{fields}})
	if err != nil {
		return r.wrong("more", err)
	}
	set, err := policy.Parse(text)
	var wrong *policy.Error
	switch {
	case errors.As(err, &wrong):
		return r.wrong("more"+strings.TrimPrefix(wrong.Field, "rules[0]"), wrong.Err)
	case err != nil:
		return r.wrong("more", err)
	}
	words.Copy(rule, &set.Rules[0])
	return nil
}

// values are an attribute's values. In JSON they are one value or a list.
type values []string

func (v *values) UnmarshalJSON(data []byte) error {
	var one string
	if err := json.Unmarshal(data, &one); err == nil {
		*v = values{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(v))
}

// lists converts attributes' values to a Match's form.
func lists(of map[string]values) map[string][]string {
	if of == nil {
		return nil
	}
	all := make(map[string][]string, len(of))
	for name, v := range of {
		all[name] = v
	}
	return all
}

// notValues are an attribute's values under not. Under prefix and suffix in not, they are several attributes' values.
type notValues struct {
	values values
	parts  map[string]values
}

func (v *notValues) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		return json.Unmarshal(data, &v.parts)
	}
	return v.values.UnmarshalJSON(data)
}

// addTo adds the values to a match, as [policy.Match.Not] holds them.
func (v *notValues) addTo(m *policy.Match, name string) error {
	if m.Not == nil {
		m.Not = map[string][]string{}
	}
	if parts := name == "prefix" || name == "suffix"; parts != (v.parts != nil) {
		return errors.New("not has prefix or suffix without attributes, or attributes in another field")
	}
	if v.parts == nil {
		m.Not[name] = v.values
	}
	for attribute, values := range v.parts {
		m.Not[name+":"+attribute] = values
	}
	return nil
}

// decode reads JSON strictly. If fields are given, objects must have no other
// fields. The errors contain no part of the JSON, because it may have keys.
func decode(text string, to any, fields ...string) error {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		if errors.Is(err, ratelimit.ErrInvalidLimit) {
			return err
		}
		return fmt.Errorf("not the JSON that is wanted, near byte %d", dec.InputOffset())
	}
	if dec.More() {
		return fmt.Errorf("more after the JSON, at byte %d", dec.InputOffset())
	}
	tree, err := jsontree.Read([]byte(text))
	switch {
	case err != nil || jsontree.Repeats(tree):
		return errors.New("a field of the JSON is there twice")
	case jsontree.HasNull(tree):
		return errors.New("the JSON has a null, which is no value")
	case len(fields) > 0 && !hasOnly(tree, fields):
		return fmt.Errorf("a field of the JSON is none of %s", strings.Join(fields, ", "))
	}
	return nil
}

// hasOnly reports whether all fields in an object, or in each object in
// a list, have a name in fields. Package json alone would ignore case.
func hasOnly(n *yaml.Node, fields []string) bool {
	for i, c := range n.Content {
		switch n.Kind {
		case yaml.SequenceNode:
			if !hasOnly(c, fields) {
				return false
			}
		case yaml.MappingNode:
			if i%2 == 0 && !slices.Contains(fields, c.Value) {
				return false
			}
		}
	}
	return true
}

// listOf splits a text and removes empty parts. It returns nil for "".
func listOf(text, by string) (list []string) {
	for part := range strings.SplitSeq(text, by) {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}
