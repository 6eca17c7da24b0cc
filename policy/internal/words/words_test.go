package words_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/words"
)

// all contains each word.
const all = `rules:
- name: api
  limit: fixed-window 9/s
  costs: [{match: {route: [POST /x, /y], attributes: {user: [ann, bob]}, absent: [z]}, cost: 2}, {match: {suffix: {a: b}}, cost: n}, {match: {not: {a: b}}, cost: ""}]
  actual: tokens
  charge: always
  budget: old
  grace: 10%
  from: 2026-01-01T00:00:00Z
  until: 2026-02-01T00:00:00Z
`

// columns lists a rule's fields with their own text, column or place on the page.
const columns = "name description match key allow instead limit plans share shares limit_from notify overrides cost optional shadow disabled changed_by"

func TestEachFieldOfARuleHasAColumnOrIsAWord(t *testing.T) {
	known := append(strings.Fields(columns), words.Names()...)
	var fields []string
	for i := range reflect.TypeFor[policy.Rule]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[policy.Rule]().Field(i).Tag.Get("yaml"), ",")
		fields = append(fields, name)
	}
	assert.ElementsMatch(t, fields, known)
}

func TestEachWordIsCopiedAndHasAText(t *testing.T) {
	set, err := policy.Parse([]byte(all))
	require.NoError(t, err)
	r := &set.Rules[0]
	copied := &policy.Rule{Name: r.Name, Limit: r.Limit}
	words.Copy(copied, r)
	assert.Equal(t, r, copied)
	texts := map[string]string{}
	for _, w := range words.Of(r, true) {
		assert.NotEmpty(t, w.Text, w.Name)
		texts[w.Name] = w.Text
	}
	assert.Equal(t, "2 for POST /x, /y with user ann or bob without z; n for with a ending with b; the caller's for with a not b", texts["costs"])
	assert.NotContains(t, fmt.Sprint(words.Of(r, false)), "ann", "a value may be a key")
	for _, w := range words.Of(&policy.Rule{}, true) {
		assert.Empty(t, w.Text, w.Name)
	}
}
