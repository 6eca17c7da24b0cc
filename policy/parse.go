package policy

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/jsontree"
)

// Parse reads YAML or JSON of at most 4 MiB. Unknown fields, duplicates, anchors, aliases and a second document
// are errors. A file without the field rules is an error, too, because it may be half written. A file with "rules:
// []" limits nothing. The error is an [*Error]. Parse reads no other file: if a [List] is in a file, use [File].
func Parse(data []byte) (*Set, error) { return parseBeside(data, nil) }

// parseBeside is Parse with the files of lists. It reads them with beside. If beside is nil, they are not read.
func parseBeside(data []byte, beside func(file string) ([]byte, error)) (*Set, error) {
	set, _, all := parse(data, false, beside)
	if len(all) > 0 {
		return nil, all[0]
	}
	return set, nil
}

// Check is like [Parse], but returns all errors, up to 100, in the file's order. If there are errors, the
// set is nil. Otherwise Check returns the set and warnings. It warns of a fixed cost above the capacity, of
// an ip, a route, a method, a host or a path that no request has, and of an attribute that nothing supplies.
//
// With engines, it also returns [New]'s errors with each of them. It does not call a store,
// so policyredis.New(client, opts) needs no server here. It does not change an engine in use.
//
// Check does not read lists' files. The command policy check reads and checks them.
func Check(data []byte, engines ...Engine) (*Set, []*Error) { return checkAll(data, nil, engines) }

// checkAll is Check with the files of lists. It reads them with beside. If beside is nil, they are not read.
func checkAll(data []byte, beside func(file string) ([]byte, error), engines []Engine) (*Set, []*Error) {
	set, p, all := parse(data, true, beside)
	if len(all) == 0 {
		for _, e := range engines {
			for _, refused := range set.refusals(e) {
				if len(all) < maxProblems {
					all = append(all, p.located(refused))
				}
			}
		}
	}
	if len(all) > 0 {
		set = nil
	} else {
		for _, w := range set.warnings() {
			all = append(all, p.located(w))
		}
	}
	sortErrors(all)
	return set, all
}

// sortErrors sorts by the place in the file.
func sortErrors(all []*Error) {
	slices.SortStableFunc(all, func(a, b *Error) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
}

// parse reads a set up to the first error, or all if all is true. The parser records where its fields are.
func parse(data []byte, all bool, beside func(file string) ([]byte, error)) (*Set, *parser, []*Error) {
	if len(data) > maxSize {
		return nil, nil, []*Error{{Err: fmt.Errorf("%d bytes, want at most %d", len(data), maxSize)}}
	}
	p := &parser{at: map[string]*yaml.Node{}, json: isJSON(data), all: all}
	root, err := p.tree(data)
	if err != nil {
		return nil, p, []*Error{p.asError(err)}
	}
	set := new(Set)
	if err := p.set(root, set); err != nil {
		p.add(err)
		return nil, p, p.errs
	}
	if p.anchor != nil {
		p.add(p.anchor)
	}
	if _, ok := p.at["rules"]; !ok && len(p.errs) == 0 {
		return nil, p, []*Error{p.asError(p.wrong(root, "", errNoRules))}
	}
	if len(p.errs) > 0 && !all {
		return nil, p, p.errs
	}
	if beside != nil {
		lists(set.Lists).load(beside, func(e *Error) { p.add(p.located(e)) })
	}
	if len(p.errs) > 0 && !all {
		return nil, p, p.errs
	}
	for _, e := range set.problems(beside == nil) {
		if !p.failed(e.Field) && len(p.errs) < maxProblems {
			p.errs = append(p.errs, p.located(e))
		}
	}
	return set, p, p.errs
}

func (p *parser) asError(err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Err: err}
	}
	return e
}

// add records an error, unless there are too many already.
func (p *parser) add(err error) {
	if len(p.errs) < maxProblems {
		p.errs = append(p.errs, p.asError(err))
	}
}

// note records an error and returns nil if all errors are wanted. Otherwise it returns the error.
func (p *parser) note(err error) error {
	if err == nil || !p.all || len(p.errs) >= maxProblems {
		return err
	}
	p.add(err)
	return nil
}

// failed reports whether a field or a part of it could not be read. Then its other errors are unknown.
func (p *parser) failed(field string) bool {
	for _, e := range p.errs {
		if e.Field == field || strings.HasPrefix(e.Field, field+".") || strings.HasPrefix(e.Field, field+"[") {
			return true
		}
	}
	return false
}

// isJSON reports whether the data is a JSON object. Most other data that begins like one is YAML.
func isJSON(data []byte) bool {
	text := bytes.TrimSpace(data)
	return len(text) > 0 && text[0] == '{' && json.Valid(text)
}

var errNoRules = errors.New(`the field rules is missing; to limit nothing, write "rules: []"`)

// tree returns the document's root.
func (p *parser) tree(data []byte) (*yaml.Node, error) {
	if p.json {
		return jsontree.Read(data)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, &Error{Err: errNoRules}
	case err != nil:
		return nil, syntaxError(err, data)
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, &Error{Line: second.Line, Column: second.Column, Err: errors.New("a second document; want one")}
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(err, data)
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
		return nil, &Error{Err: errNoRules}
	}
	return doc.Content[0], nil
}

// syntaxError moves the line number from the text of the YAML library's error to an Error's field.
func syntaxError(err error, data []byte) error {
	e := &Error{}
	if at := (*yaml.LoadError)(nil); errors.As(err, &at) {
		e.Line, e.Column = at.Mark.Line, at.Mark.Column
	}
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), fmt.Sprintf("line %d: ", e.Line))
	if e.Line == 0 {
		e.Line, e.Column = firstInvalid(data)
	}
	if strings.HasPrefix(text, "unknown anchor") { // the library's text contains the alias: perhaps a key with a star at its beginning
		text = "an alias, which is not supported"
	}
	e.Err = errors.New(text)
	return e
}

// firstInvalid returns the place of the first byte outside UTF-8, or of
// the first character forbidden by YAML. It returns 0 if there is none.
func firstInvalid(data []byte) (line, column int) {
	line, column = 1, 1
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && size == 1,
			unicode.IsControl(r) && !strings.ContainsRune("\t\n\r\u0085", r),
			r == '\uFFFE', r == '\uFFFF':
			return line, column
		case r == '\n':
			line, column = line+1, 1
		default:
			column++
		}
		data = data[size:]
	}
	return 0, 0
}

// parser reads a tree, and records each field's place.
type parser struct {
	at   map[string]*yaml.Node // by field, such as "rules[2].limit"
	rule string                // the present rule's name
	json bool

	keyless bool // whether the present override has no field key

	all  bool     // whether to gather all errors
	errs []*Error // the errors found

	anchor error // the error about the first mapping with an anchor
}

// located adds the field's place to an error of validate.
func (p *parser) located(e *Error) *Error {
	for field := e.Field; field != ""; field = parent(field) {
		if n, ok := p.at[field]; ok {
			e.Line, e.Column = n.Line, n.Column
			break
		}
	}
	return e
}

// parent returns the field around a field, or "" if there is none.
func parent(field string) string { return field[:max(0, strings.LastIndexAny(field, ".["))] }

func (p *parser) wrong(n *yaml.Node, field string, err error) error {
	return &Error{Line: n.Line, Column: n.Column, Rule: p.rule, Field: field, Err: err}
}

// fields maps a mapping's possible fields to the functions that read them.
type fields map[string]func(n *yaml.Node, field string) error

// mapping reads a mapping. Unknown and repeated fields are errors.
func (p *parser) mapping(n *yaml.Node, field string, known fields) error {
	return p.pairs(n, field, func(key, value *yaml.Node, inner string) error {
		read, ok := known[key.Value]
		if !ok {
			return p.wrong(key, field, unknown(key.Value, p.fieldText(key.Value), slices.Sorted(maps.Keys(known))))
		}
		return read(value, inner)
	})
}

// fieldText returns a field's name for an error. In an override without
// the field key it returns no name, because the name may be a key.
func (p *parser) fieldText(name string) string {
	if p.keyless {
		return "field"
	}
	return fmt.Sprintf("field %q", name)
}

// unknown is the error about an unknown field. It suggests a known field with a similar name.
func unknown(field, label string, known []string) error {
	for changes := range 3 {
		for _, k := range known {
			if alike(strings.ToLower(field), k, changes) {
				return fmt.Errorf("unknown %s; %q, maybe", label, k)
			}
		}
	}
	if slices.Contains(known, "match") && slices.Contains([]string{"route", "attributes", "not", "prefix", "suffix", "absent"}, field) {
		return fmt.Errorf("unknown %s; %q, maybe", label, "match."+field)
	}
	return fmt.Errorf("unknown %s, want one of %s", label, strings.Join(known, ", "))
}

// pairs calls read for each pair of a mapping.
func (p *parser) pairs(n *yaml.Node, field string, read func(key, value *yaml.Node, inner string) error) error {
	if n.Kind != yaml.MappingNode || n.ShortTag() != "!!map" {
		return p.wrong(n, field, fmt.Errorf("%s, want a mapping", kind(n)))
	}
	if n.Anchor != "" && p.anchor == nil { // an alias to the anchor is reported first
		p.anchor = p.wrong(n, field, fmt.Errorf("%s, want a mapping", kind(n)))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if err := p.plain(key, field); err != nil {
			return err
		}
		if seen[key.Value] {
			if err := p.note(p.wrong(key, field, fmt.Errorf("the %s is there twice", p.fieldText(key.Value)))); err != nil {
				return err
			}
			continue
		}
		seen[key.Value] = true
		inner := key.Value
		if field != "" {
			inner = field + "." + inner
		}
		p.at[inner] = key
		if err := p.note(read(key, value, inner)); err != nil {
			return err
		}
	}
	return nil
}

// list calls read for each element. If alone is true, it accepts a single value as a list of one.
func (p *parser) list(n *yaml.Node, field string, alone bool, read func(n *yaml.Node, field string) error) error {
	if alone && n.Kind == yaml.ScalarNode && !null(n) {
		return read(n, field)
	}
	if n.Kind != yaml.SequenceNode || n.Anchor != "" || n.ShortTag() != "!!seq" {
		return p.wrong(n, field, fmt.Errorf("%s, want a list", kind(n)))
	}
	for i, e := range n.Content {
		inner := field + "[" + strconv.Itoa(i) + "]"
		p.at[inner] = e
		if err := p.note(read(e, inner)); err != nil {
			return err
		}
	}
	return nil
}

// plain returns an error if a node is not a single value: a text, a number, a date, true or false.
func (p *parser) plain(n *yaml.Node, field string) error {
	if n.Kind != yaml.ScalarNode || n.Anchor != "" || kindOf[n.ShortTag()] == "" {
		return p.wrong(n, field, fmt.Errorf("%s, want a value", kind(n)))
	}
	if err := checkText(n.Value); err != nil { // this check also keeps longer texts out of all errors
		return p.wrong(n, field, err)
	}
	return nil
}

// kindOf names the kinds of single values, by their YAML tags.
var kindOf = map[string]string{"!!str": "a text", "!!timestamp": "a date", "!!int": "a number", "!!float": "a number", "!!bool": "true or false"}

// word returns an error if a node is not a text. A text is in quotes, or is not a number, true or false. A date is a text.
func (p *parser) word(n *yaml.Node, field string) error {
	if err := p.plain(n, field); err != nil {
		return err
	}
	if tag := n.ShortTag(); tag != "!!str" && tag != "!!timestamp" {
		return p.wrong(n, field, fmt.Errorf("%s is %s, want a text", n.Value, kindOf[tag]))
	}
	return nil
}

func null(n *yaml.Node) bool { return n.ShortTag() == "!!null" }

func kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.AliasNode:
		return "an alias, which is not supported"
	case n.Anchor != "":
		return "an anchor, which is not supported"
	case n.Kind == yaml.MappingNode && n.ShortTag() == "!!map":
		return "a mapping"
	case n.Kind == yaml.SequenceNode && n.ShortTag() == "!!seq":
		return "a list"
	case null(n):
		return "nothing"
	case n.ShortTag() == "!!merge":
		return "a merge key, which is not supported"
	case kindOf[n.ShortTag()] == "":
		return "a tag, which is not supported"
	}
	return "a value"
}

// text reads a value as text, if check allows it.
func (p *parser) text(to *string, check func(*yaml.Node, string) error) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		if err := check(n, field); err != nil {
			return err
		}
		*to = n.Value
		return nil
	}
}

// version reads a text or a number.
func (p *parser) version(n *yaml.Node, field string) error {
	if n.ShortTag() == "!!int" || n.ShortTag() == "!!float" {
		return p.plain(n, field)
	}
	return p.word(n, field)
}

func (p *parser) flag(to *bool) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		if err := p.plain(n, field); err != nil {
			return err
		}
		if n.Value != "true" && n.Value != "false" || n.ShortTag() != "!!bool" {
			return p.wrong(n, field, fmt.Errorf("%q, want true or false", n.Value))
		}
		*to = n.Value == "true"
		return nil
	}
}

// texts reads a list of values, or a single one, if check allows them.
func (p *parser) texts(to *[]string, check func(*yaml.Node, string) error) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		*to = []string{}
		return p.list(n, field, true, func(n *yaml.Node, field string) error {
			var s string
			err := p.text(&s, check)(n, field)
			*to = append(*to, s)
			return err
		})
	}
}

func (p *parser) limit(to *ratelimit.Limit) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		if err := p.word(n, field); err != nil {
			return err
		}
		l, err := ratelimit.ParseLimit(n.Value)
		if err != nil {
			return p.wrong(n, field, err)
		}
		*to = l
		return nil
	}
}

func (p *parser) set(n *yaml.Node, s *Set) error {
	return p.mapping(n, "", fields{
		"version":     p.text(&s.Version, p.version),
		"kill_switch": p.flag(&s.KillSwitch),
		"attributes":  p.texts(&s.Attributes, p.word),
		"lists":       p.lists(&s.Lists),
		"defaults": func(n *yaml.Node, field string) error {
			d := new(Defaults)
			s.Defaults = d
			return p.mapping(n, field, fields{
				"match": p.match(&d.Match), "key": p.texts(&d.Key, p.word), "limit": p.limit(&d.Limit), "plans": p.plans(&d.Plans), "cost": p.cost(&d.Cost),
			})
		},
		"rules": func(n *yaml.Node, field string) error {
			s.Rules = []Rule{}
			if null(n) && p.json { // valid JSON is complete
				return nil
			}
			if n.Kind == yaml.SequenceNode && len(n.Content) > maxRules { // otherwise there could be an error for each rule
				return p.wrong(n.Content[maxRules], field, fmt.Errorf("%d rules, want at most %d", len(n.Content), maxRules))
			}
			return p.list(n, field, false, func(n *yaml.Node, field string) error {
				s.Rules = append(s.Rules, Rule{})
				defer func() { p.rule = "" }()
				return p.readRule(n, field, &s.Rules[len(s.Rules)-1])
			})
		},
	})
}

func (p *parser) readRule(n *yaml.Node, field string, r *Rule) error {
	p.rule = nameIn(n)
	known := make(fields, len(ruleFields))
	for i, name := range ruleFields {
		known[name] = p.reader(reflect.ValueOf(r).Elem().Field(i).Addr().Interface())
	}
	known["charge"] = p.charge(&r.Charge)
	return p.mapping(n, field, known)
}

// ruleFields are the names of a Rule's fields, in order. The type of a field determines how it is read.
var ruleFields = func() (names []string) {
	for i, t := 0, reflect.TypeFor[Rule](); i < t.NumField(); i++ {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
		names = append(names, name)
	}
	return names
}()

// reader returns the function to read a field of a rule with.
func (p *parser) reader(to any) func(*yaml.Node, string) error {
	switch to := to.(type) {
	case *string:
		return p.text(to, p.word)
	case *[]string:
		return p.texts(to, p.word)
	case *bool:
		return p.flag(to)
	case *int:
		return p.weight(to)
	case *map[string]int:
		return p.weights(to)
	case *time.Time:
		return p.instant(to)
	case *Match:
		return p.match(to)
	case *ratelimit.Limit:
		return p.limit(to)
	case *map[string]ratelimit.Limit:
		return p.plans(to)
	case *[]Override:
		return p.overrides(to)
	case *Cost:
		return p.cost(to)
	case *[]Cost:
		return p.costs(to)
	}
	panic(fmt.Sprintf("policy: a field of rules is a %T, which the parser cannot read: a bug in this package", to))
}

// nameIn returns the name in a rule before it is read, for use in errors.
func nameIn(n *yaml.Node) string {
	if name := valueOf(n, "name"); name != nil && name.ShortTag() == "!!str" && checkName(name.Value) == nil {
		return name.Value
	}
	return ""
}

// valueOf returns a field of a mapping, or nil if it has none.
func valueOf(n *yaml.Node, field string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == field {
			return n.Content[i+1]
		}
	}
	return nil
}

func (p *parser) match(m *Match) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		if len(n.Content) == 0 { // an empty field is set, so the defaults' match does not apply: see [Match.leftOut]
			m.Attributes = map[string][]string{}
		}
		return p.mapping(n, field, fields{
			"route": p.texts(&m.Route, p.word), "attributes": p.values(&m.Attributes), "not": p.not(&m.Not),
			"prefix": p.values(&m.Prefix), "suffix": p.values(&m.Suffix), "absent": p.texts(&m.Absent, p.word),
		})
	}
}

// values reads lists of values, by attributes' names.
func (p *parser) values(to *map[string][]string) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		*to = map[string][]string{}
		return p.pairs(n, field, func(key, value *yaml.Node, inner string) error {
			var values []string
			err := p.texts(&values, p.plain)(value, inner)
			(*to)[key.Value] = values
			return err
		})
	}
}

// not reads lists of values, by attributes' names. prefix and suffix have further lists: see [Match.Not].
func (p *parser) not(to *map[string][]string) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		*to = map[string][]string{}
		return p.pairs(n, field, func(key, value *yaml.Node, inner string) error {
			if key.Value+":" == notPrefix || key.Value+":" == notSuffix {
				return p.notParts(*to, key.Value, value, inner)
			}
			check := p.plain
			if key.Value == attrRoute {
				check = p.word
			}
			if (*to)[key.Value] != nil {
				return p.wrong(value, inner, fmt.Errorf("the attribute %q is there twice", key.Value))
			}
			var values []string
			err := p.texts(&values, check)(value, inner)
			(*to)[key.Value] = values
			return err
		})
	}
}

// notParts reads the lists of prefixes or suffixes in not.
func (p *parser) notParts(to map[string][]string, part string, n *yaml.Node, field string) error {
	if len(n.Content) == 0 && n.Kind == yaml.MappingNode {
		return p.wrong(n, field, errors.New("an empty mapping, which has no effect"))
	}
	lists := map[string][]string{}
	err := p.values(&lists)(n, field)
	for name, values := range lists {
		if to[part+":"+name] != nil {
			return p.wrong(n, field, fmt.Errorf("the attribute %q is there twice", name))
		}
		to[part+":"+name] = values
	}
	return err
}

func (p *parser) plans(to *map[string]ratelimit.Limit) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		*to = map[string]ratelimit.Limit{}
		return p.pairs(n, field, func(key, value *yaml.Node, inner string) error {
			var l ratelimit.Limit
			err := p.limit(&l)(value, inner)
			(*to)[key.Value] = l
			return err
		})
	}
}

// weight reads a share's weight. 0 is an error, because it stands for no weight.
func (p *parser) weight(to *int) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		if err := p.plain(n, field); err != nil {
			return err
		}
		weight, err := strconv.Atoi(n.Value)
		if err != nil || n.ShortTag() != "!!int" {
			return p.wrong(n, field, fmt.Errorf("%q, want a weight: a whole number from 1 to %d", n.Value, maxWeight))
		}
		if err := checkWeight(weight); err != nil {
			return p.wrong(n, field, err)
		}
		*to = weight
		return nil
	}
}

func (p *parser) weights(to *map[string]int) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		*to = map[string]int{}
		return p.pairs(n, field, func(key, value *yaml.Node, inner string) error {
			var weight int
			err := p.weight(&weight)(value, inner)
			(*to)[key.Value] = weight
			return err
		})
	}
}

func (p *parser) overrides(to *[]Override) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		return p.list(n, field, false, func(n *yaml.Node, field string) error {
			var o Override
			var key []string
			p.keyless = valueOf(n, "key") == nil
			err := p.mapping(n, field, fields{"key": p.texts(&key, p.plain), "limit": p.limit(&o.Limit), "share": p.weight(&o.Share),
				"from": p.instant(&o.From), "until": p.instant(&o.Until)})
			p.keyless = false
			o.Key = key
			*to = append(*to, o)
			return err
		})
	}
}

func (p *parser) cost(to *Cost) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		if err := p.plain(n, field); err != nil {
			return err
		}
		var c Cost
		if i, err := strconv.Atoi(n.Value); err == nil && n.ShortTag() == "!!int" {
			c.Number = i
		} else if n.ShortTag() == "!!bool" {
			return p.word(n, field)
		} else {
			c.Attribute, c.Caller = n.Value, n.Value == ""
		}
		if err := c.check(); err != nil {
			return p.wrong(n, field, err)
		}
		*to = c
		return nil
	}
}

func (p *parser) costs(to *[]Cost) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		*to = []Cost{}
		return p.list(n, field, false, func(n *yaml.Node, field string) error {
			var c Cost
			m := new(Match)
			err := p.mapping(n, field, fields{"match": p.match(m), "cost": p.cost(&c)})
			c.Match = m
			*to = append(*to, c)
			return err
		})
	}
}

// lists reads a set's lists. Each is a file or a list of values.
func (p *parser) lists(to *map[string]List) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		*to = map[string]List{}
		return p.pairs(n, field, func(key, value *yaml.Node, inner string) error {
			var list List
			var err error
			if value.Kind == yaml.ScalarNode && !null(value) {
				if err = p.text(&list.File, p.word)(value, inner); err == nil && list.File == "" {
					err = p.wrong(value, inner, errors.New("nothing, want a file or values"))
				}
			} else {
				err = p.texts((*[]string)(&list.Values), p.plain)(value, inner)
			}
			(*to)[key.Value] = list
			return err
		})
	}
}

// instant reads a time of RFC 3339.
func (p *parser) instant(to *time.Time) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		if err := p.word(n, field); err != nil {
			return err
		}
		at, err := time.Parse(time.RFC3339, n.Value)
		if err == nil && at.IsZero() {
			err = errors.New("it stands for no time")
		}
		if err != nil {
			return p.wrong(n, field, fmt.Errorf("%q, want an instant of RFC 3339 such as 2026-01-31T09:00:00+01:00", n.Value))
		}
		*to = at
		return nil
	}
}

// charge reads a rule's field charge.
func (p *parser) charge(to *string) func(*yaml.Node, string) error {
	return func(n *yaml.Node, field string) error {
		if err := p.text(to, p.word)(n, field); err != nil || *to != "" {
			return err
		}
		return p.wrong(n, field, errors.New(`"", want always`))
	}
}
