// Package words formats rule fields that are only shown by name and text: in the differences
// between two sets, on package admin's page, and in a rules table's column "more".
package words

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/policy"
)

// Word is a rule's field, as it is shown.
type Word struct {
	Name string
	Text string // "" if the rule does not have the field
}

// names are the words' names in the order for showing them. Each is the name in a field's tag in policy.Rule.
var names = []string{"budget", "from", "until", "grace", "costs", "actual", "charge"}

// Names returns the words' names.
func Names() []string { return slices.Clone(names) }

// places are the words' indices among a Rule's fields.
var places = func() (all []int) {
	t := reflect.TypeFor[policy.Rule]()
	for _, name := range names {
		for i := range t.NumField() {
			if tag, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); tag == name {
				all = append(all, i)
			}
		}
	}
	return all
}()

// Of returns a rule's words, always the same words in the same order. If values
// is false, it only counts the conditions' values, because they may be keys.
func Of(r *policy.Rule, values bool) []Word {
	all := make([]Word, len(names))
	for k, i := range places {
		all[k] = Word{names[k], text(reflect.ValueOf(r).Elem().Field(i).Interface(), values)}
	}
	return all
}

// text returns a field's text, or "" if the rule does not have the field.
func text(field any, values bool) string {
	switch v := field.(type) {
	case string:
		return v
	case time.Time:
		return instant(v)
	case []policy.Cost:
		return costs(v, values)
	case []string:
		return List(v, ", ")
	case bool, int:
		if reflect.ValueOf(v).IsZero() {
			return ""
		}
		return fmt.Sprint(v)
	}
	panic(fmt.Sprintf("words: a word is a %T, which has no text: a bug in this package", field))
}

// Copy copies a rule's words to another rule.
func Copy(to, from *policy.Rule) {
	for _, i := range places {
		reflect.ValueOf(to).Elem().Field(i).Set(reflect.ValueOf(from).Elem().Field(i))
	}
}

func costs(all []policy.Cost, values bool) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = Cost(p) + " for " + strings.Join(Match(*p.Match, values), " ")
	}
	return strings.Join(texts, "; ")
}

// instant returns a time's text, or "" for the zero time.
func instant(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.Format(time.RFC3339Nano)
}

// Time returns when an override holds, as text, or "" if it always holds.
func Time(o *policy.Override) (text string) {
	if !o.From.IsZero() {
		text = " from " + instant(o.From)
	}
	if !o.Until.IsZero() {
		text += " until " + instant(o.Until)
	}
	return text
}

// Cost returns a cost's text.
func Cost(c policy.Cost) string {
	switch {
	case c.Number != 0:
		return strconv.Itoa(c.Number)
	case c.Attribute != "":
		return c.Attribute
	}
	return "the caller's"
}

// Match returns a text for each condition of a match.
func Match(m policy.Match, show bool) (all []string) {
	if len(m.Route) > 0 {
		all = append(all, List(m.Route, ", "))
	}
	for _, cond := range []struct {
		how    string
		values map[string][]string
	}{{" ", m.Attributes}, {" not ", m.Not}, {" beginning with ", m.Prefix}, {" ending with ", m.Suffix}} {
		for _, name := range slices.Sorted(maps.Keys(cond.values)) {
			values := List(cond.values[name], " or ")
			if !show && name != "route" {
				values = Counted(cond.values[name])
			}
			all = append(all, "with "+name+cond.how+values)
		}
	}
	if len(m.Absent) > 0 {
		all = append(all, "without "+List(m.Absent, " and "))
	}
	return all
}

// Counted returns a text for values that may be keys: their number, and the names of lists among them.
func Counted(values []string) string {
	named := []string{}
	for _, v := range values {
		if strings.HasPrefix(v, "@") && !strings.HasPrefix(v, "@@") {
			named = append(named, v)
		}
	}
	if own := len(values) - len(named); own > 0 || len(named) == 0 {
		named = append(named, fmt.Sprintf("%d values", own))
	}
	return strings.Join(named, " or ")
}

// ListText returns a list's text, without its values.
func ListText(l policy.List) string {
	if l.File != "" {
		return fmt.Sprintf("%d values of %s", len(l.Values), strconv.Quote(l.File))
	}
	return fmt.Sprintf("%d values", len(l.Values))
}

// List joins texts so that different lists have different results. It quotes texts unless they are plain.
func List(list []string, between string) string {
	out := make([]string, len(list))
	for i, s := range list {
		if out[i] = s; !plain.MatchString(s) {
			out[i] = strconv.Quote(s)
		}
	}
	return strings.Join(out, between)
}

// plain matches texts that need no quotes in a list: words, and routes with methods.
var plain = regexp.MustCompile(`^([A-Z]+ )?[^\s,"]+$`)
