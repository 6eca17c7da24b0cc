package policy_test

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit/policy"
)

const schemaFile = "../docs/policy.schema.json"

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(schemaFile)
	require.NoError(t, err)
	return s
}

// TestTheSchemaAgreesWithTheParser validates files with both. Each
// file has one right or wrong detail, as far as a schema can judge.
func TestTheSchemaAgreesWithTheParser(t *testing.T) {
	s := schema(t)
	for text, valid := range map[string]bool{
		whole:                       true,
		"rules: []":                 true,
		"version: 7\nrules: []":     true,
		"version: 1":                false,
		"rules: {}":                 false,
		"kill_switch: 1\nrules: []": false,
		"rules: []\nlimits: []":     false,
		"rules:\n- {name: a}":       false,
		"defaults: {key: user}\nrules:\n- {name: a}":                      false,
		"rules:\n- {limit: blocked}":                                      false,
		"rules:\n- {name: 1a, limit: blocked}":                            false,
		rule("  description: x\n"):                                        true,
		rule("  burst: 3\n"):                                              false,
		rule("  key: user\n"):                                             true,
		rule("  key: [user, header:X-Tenant]\n"):                          true,
		rule("  key: [user, user]\n"):                                     false,
		rule("  key: [the user]\n"):                                       false,
		rule("  key: [[user]]\n"):                                         false,
		rule("  match: {route: /a}\n"):                                    true,
		rule("  match: {route: []}\n"):                                    false,
		rule("  match: {path: /a}\n"):                                     false,
		rule("  match: {attributes: {region: [eu, us], n: 1}}\n"):         true,
		rule("  match: {attributes: {region: []}}\n"):                     false,
		rule("  match: {attributes: {region: {a: b}}}\n"):                 false,
		rule("  plans: {free: blocked, pro: leaky-bucket 1/s queue 5}\n"): true,
		rule("  plans: {free: leaky-bucket 1/s burst 5}\n"):               false,
		rule("  plans: {free: calendar 1000/hour UTC, pro: calendar 60/minute Europe/Berlin}\n"):  true,
		rule("  plans: {free: calendar 1000/hour UTC from 1}\n"):                                  false,
		rule("  plans: {free: calendar 1000/century UTC}\n"):                                      false,
		rule("  plans: {free: calendar 1000/year UTC}\n"):                                         true,
		rule("  plans: {free: calendar 1000/day 04:00 Europe/Berlin}\n"):                          true,
		rule("  plans: {free: calendar 1000/month 23:30 UTC from 15}\n"):                          true,
		rule("  plans: {free: calendar 1000/week 04:00 UTC from monday}\n"):                       true,
		rule("  plans: {free: calendar 1000/day 4:00 UTC}\n"):                                     false,
		rule("  plans: {free: calendar 1000/day 24:00 UTC}\n"):                                    false,
		rule("  plans: {free: calendar 1000/hour 04:00 UTC}\n"):                                   false,
		rule("  plans: {free: calendar 1000/year UTC from 2}\n"):                                  false,
		rule("  plans: {free: often}\n"):                                                          false,
		rule("  plans: [blocked]\n"):                                                              false,
		rule("  key: user\n  overrides: [{key: a, limit: unlimited}]\n"):                          true,
		rule("  key: user\n  overrides: [{key: a}]\n"):                                            false,
		rule("  key: user\n  overrides: [{limit: blocked}]\n"):                                    false,
		rule("  key: user\n  overrides: [{key: a, limit: blocked, x: 1}]\n"):                      false,
		shared("  share: 1\n"):                                                                    true,
		shared("  share: 1\n  shares: {pro: 3}\n"):                                                true,
		shared("  share: 1\n  plans: {pro: blocked, staff: unlimited}\n"):                         true,
		shared("  share: 1\n  overrides: [{key: a, share: 3}, {key: b, limit: blocked}]\n"):       true,
		shared("  share: 0\n"):                                                                    false,
		shared("  share: 1048577\n"):                                                              false,
		shared("  share: much\n"):                                                                 false,
		shared("  share: 1.5\n"):                                                                  false,
		shared("  shares: {pro: 3}\n"):                                                            false,
		shared("  share: 1\n  shares: {pro: 0}\n"):                                                false,
		shared("  share: 1\n  shares: {pro: 3, '': 1}\n"):                                         false,
		shared("  share: 1\n  limit_from: quota\n"):                                               false,
		shared("  share: 1\n  notify: 80%\n"):                                                     false,
		shared("  share: 1\n  plans: {pro: fixed-window 1/s}\n"):                                  false,
		shared("  share: 1\n  overrides: [{key: a, limit: fixed-window 1/s}]\n"):                  false,
		shared("  share: 1\n  overrides: [{key: a, share: 3, limit: blocked}]\n"):                 false,
		shared("  share: 1\n  overrides: [{key: a}]\n"):                                           false,
		rule("  key: user\n  share: 1\n"):                                                         false,
		"rules:\n- {name: a, allow: true, share: 1}":                                              false,
		rule("  cost: 3\n"):                                                                       true,
		rule("  cost: tokens\n"):                                                                  true,
		rule("  cost: ''\n"):                                                                      true,
		rule("  cost: ' '\n"):                                                                     false,
		rule("  cost:\n"):                                                                         false,
		rule("  cost: 0\n"):                                                                       false,
		rule("  cost: -1\n"):                                                                      false,
		rule("  cost: 1.5\n"):                                                                     false,
		rule("  cost: [1]\n"):                                                                     false,
		rule("  optional: true\n"):                                                                true,
		rule("  shadow: maybe\n"):                                                                 false,
		rule("  disabled: null\n"):                                                                false,
		"rules:\n- {name: a, allow: true}":                                                        true,
		"rules:\n- {name: a, allow: true, match: {prefix: {path: /health}}}":                      true,
		"rules:\n- {name: a, allow: true, limit: blocked}":                                        false,
		"rules:\n- {name: a, allow: true, key: user}":                                             false,
		"rules:\n- {name: a, allow: true, shadow: true}":                                          false,
		"rules:\n- {name: a, allow: false, limit: blocked}":                                       true,
		"defaults: {limit: blocked, key: user, cost: 2}\nrules:\n- {name: a}":                     true,
		"defaults: {shadow: true}\nrules: []":                                                     false,
		rule("  key: ip/24\n"):                                                                    true,
		rule("  key: [ip/24, user]\n"):                                                            true,
		rule("  key: ip/33\n"):                                                                    false,
		rule("  key: user/24\n"):                                                                  false,
		rule("  match: {not: {region: eu}, prefix: {a: [b]}, suffix: {a: [b]}}\n"):                true,
		rule("  match: {absent: user}\n"):                                                         true,
		rule("  match: {absent: []}\n"):                                                           false,
		rule("  match: {absent: [a b]}\n"):                                                        false,
		rule("  match: {not: {region: []}}\n"):                                                    false,
		rule("  match: {not: {route: [/a, POST /b]}}\n"):                                          true,
		rule("  key: ip/24/56\n"):                                                                 true,
		rule("  key: ip/24/129\n"):                                                                false,
		rule("  key: ip/0/56\n"):                                                                  false,
		rule("  key: 'query:'\n"):                                                                 false,
		"rules:\n- {name: a, limit: blocked, match: {route: '/a/{id}'}, key: wildcard:id}":        true,
		"rules:\n- {name: a, limit: blocked, key: 'wildcard:'}":                                   false,
		"rules:\n- {name: a, limit: blocked, match: {route: '/a/{id}'}, limit_from: wildcard:id}": false,
		rule("  key: [header:]\n"):                                                                false,
		rule("  match: {attributes: {'cookie:': [a]}}\n"):                                         false,
		rule("  key: [query:token, cookie:sid]\n"):                                                true,
		rule("  limit_from: quota\n"):                                                             true,
		rule("  limit_from: header:X-Quota\n"):                                                    false,
		rule("  limit_from: query:quota\n"):                                                       false,
		rule("  limit_from: path\n"):                                                              false,
		rule("  limit_from: pathology\n"):                                                         true,
		rule("  limit_from: a b\n"):                                                               false,
		rule("  notify: [80%, 100%]\n"):                                                           true,
		rule("  notify: 80%\n"):                                                                   true,
		rule("  notify: [80]\n"):                                                                  false,
		rule("  notify: [0%]\n"):                                                                  false,
		rule("  notify: [80%, 80%]\n"):                                                            false,
		rule("  notify: [101%]\n"):                                                                false,
		"attributes: [user, plan]\nrules: []":                                                     true,
		"attributes: user\nrules: []":                                                             true,
		"lists: {bad: deny.txt, 'vip': [10.0.0.1, 7]}\nrules: []":                                 true,
		"lists: {bad: lists/deny.txt}\nrules: []":                                                 true,
		"lists: {bad: ../deny.txt}\nrules: []":                                                    false,
		"lists: {bad: a/../../deny.txt}\nrules: []":                                               false,
		"lists: {bad: /etc/deny.txt}\nrules: []":                                                  false,
		"lists: {bad: ''}\nrules: []":                                                             false,
		"lists: {bad: .}\nrules: []":                                                              false,
		"lists: {bad: []}\nrules: []":                                                             false,
		"lists: {bad: [[a]]}\nrules: []":                                                          false,
		"lists: {bad: 7}\nrules: []":                                                              false,
		"lists: {a b: deny.txt}\nrules: []":                                                       false,
		"lists: deny.txt\nrules: []":                                                              false,
		"lists: {}\nrules: []":                                                                    true,
		"attributes: [a b]\nrules: []":                                                            false,
		"rules:\n- {name: a, allow: true, limit_from: quota}":                                     false,
		"rules:\n- {name: a, allow: true, notify: [80%]}":                                         false,
		rule("  match: {not: {route: []}}\n"):                                                     false,
		rule("  match: {not: {prefix: {path: /a}, suffix: {host: [.b]}}}\n"):                      true,
		rule("  match: {not: {prefix: /a}}\n"):                                                    false,
		rule("  match: {not: {prefix: {}}}\n"):                                                    false,
		rule("") + "- {name: other, limit: blocked, instead: [api]}\n":                            true,
		rule("") + "- {name: other, limit: blocked, instead: API}\n":                              true,
		rule("") + "- {name: other, limit: blocked, instead: [a b]}\n":                            false,
		rule("") + "- {name: other, allow: true, instead: [api]}\n":                               false,
		rule("  costs: [{match: {route: [POST /v1/export]}, cost: 20}, {match: {attributes: {model: gpt}}, cost: weight}]\n"): true,
		rule("  costs: [{match: {route: /a}, cost: ''}]\n"):                                                                   true,
		rule("  costs: []\n"):                                                          false,
		rule("  costs: [{match: {}, cost: 2}]\n"):                                      false,
		rule("  costs: [{cost: 2}]\n"):                                                 false,
		rule("  costs: [{match: {route: /a}}]\n"):                                      false,
		rule("  costs: [{match: {route: /a}, cost: 0}]\n"):                             false,
		rule("  costs: [{match: {route: /a}, cost: 2, limit: blocked}]\n"):             false,
		rule("  costs: {route: /a}\n"):                                                 false,
		rule("  from: 2026-01-01T00:00:00Z\n  until: '2026-02-01T00:00:00.5+01:00'\n"): true,
		rule("  from: '2026-01-01'\n"):                                                 false,
		rule("  until: soon\n"):                                                        false,
		rule("  until: 7\n"):                                                           false,
		rule("  grace: 10%\n"):                                                         true,
		rule("  grace: 0%\n"):                                                          false,
		rule("  grace: 10\n"):                                                          false,
		shared("  share: 1\n  grace: 10%\n"):                                           false,
		"rules:\n- {name: a, allow: true, grace: 10%}":                                 false,
		rule("  budget: old-name\n"):                                                   true,
		rule("  budget: a b\n"):                                                        false,
		rule("  key: user\n  overrides: [{key: a, limit: blocked, until: '2026-01-01T00:00:00Z'}]\n"): true,
		rule("  key: user\n  overrides: [{key: a, limit: blocked, until: x}]\n"):                      false,
		shared("  share: 1\n  overrides: [{key: a, share: 2, until: '2026-01-01T00:00:00Z'}]\n"):      false,
		"rules:\n- {name: a, allow: true, until: '2026-01-01T00:00:00Z'}":                             true,
		"rules:\n- {name: a, allow: true, budget: b}":                                                 false,
		rule("  charge: always\n"):                         true,
		rule("  charge: never\n"):                          false,
		rule("  charge: ''\n"):                             false,
		rule("  charge: true\n"):                           false,
		shared("  share: 1\n  charge: always\n"):           false,
		"rules:\n- {name: a, allow: true, charge: always}": false,
		rule("  actual: tokens\n"):                         true,
		rule("  actual: header:X-Tokens\n"):                false,
		rule("  actual: a b\n"):                            false,
		rule("  actual: 7\n"):                              false,
		"rules:\n- {name: a, allow: true, actual: tokens}": false,
		"rules:\n- {name: a, allow: true, costs: [{match: {route: /a}, cost: 2}]}": false,
	} {
		var v any
		require.NoError(t, yaml.Unmarshal([]byte(text), &v), text)
		data, err := json.Marshal(v)
		require.NoError(t, err)
		instance, err := jsonschema.UnmarshalJSON(strings.NewReader(string(data)))
		require.NoError(t, err)
		_, parses := policy.Parse([]byte(text))
		assert.Equal(t, valid, parses == nil, "the parser, of %s: %v", text, parses)
		fits := s.Validate(instance)
		assert.Equal(t, valid, fits == nil, "the schema, of %s: %v", text, fits)
	}
}

// TestTheSchemaHasTheFieldsOfTheFormat compares the schema with the types.
func TestTheSchemaHasTheFieldsOfTheFormat(t *testing.T) {
	data, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	var s struct {
		Properties map[string]struct{ Properties map[string]any }
		Defs       struct {
			Rule struct {
				Properties map[string]struct {
					Items struct{ Properties map[string]any }
				}
			}
			Match struct{ Properties map[string]any }
		} `json:"$defs"`
	}
	require.NoError(t, json.Unmarshal(data, &s))
	fieldsOf := func(v any) (names []string) {
		for i := range reflect.TypeOf(v).NumField() {
			name, _, _ := strings.Cut(reflect.TypeOf(v).Field(i).Tag.Get("yaml"), ",")
			names = append(names, name)
		}
		slices.Sort(names)
		return names
	}
	rules := s.Defs.Rule.Properties
	assert.Equal(t, fieldsOf(policy.Set{}), keysOf(s.Properties))
	assert.Equal(t, fieldsOf(policy.Defaults{}), keysOf(s.Properties["defaults"].Properties))
	assert.Equal(t, fieldsOf(policy.Rule{}), keysOf(rules))
	assert.Equal(t, fieldsOf(policy.Match{}), keysOf(s.Defs.Match.Properties))
	assert.Equal(t, fieldsOf(policy.Override{}), keysOf(rules["overrides"].Items.Properties))
}

func keysOf[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
