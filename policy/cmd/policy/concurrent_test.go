package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCheckDiffAndExplainKnowUnitsInUse(t *testing.T) {
	files(t, map[string]string{
		"rates": "rules: [{name: streams, key: user, limit: sliding-log 8/m}]",
		"units": "rules: [{name: streams, key: user, limit: concurrent 8 hold 1m, plans: {pro: concurrent 20 hold 1m}, overrides: [{key: eve, limit: concurrent 1 hold 1m}]}]",
		"more":  "rules: [{name: streams, key: user, limit: concurrent 9 hold 1m, plans: {pro: concurrent 20 hold 1m}, overrides: [{key: eve, limit: concurrent 2 hold 1m}]}]",
		"bad":   "rules: [{name: streams, key: user, limit: concurrent 8}]",
	})
	var out, errs bytes.Buffer
	for _, engine := range []string{"memory", "redis", "sql"} {
		assert.Equal(t, 0, run([]string{"check", "-engine", engine, "units"}, &out, &errs), errs.String())
	}
	assert.Equal(t, 1, run([]string{"check", "bad"}, &out, &errs))
	assert.Contains(t, errs.String(), "bad:1:43: ")
	assert.Contains(t, errs.String(), "hold")
	out.Reset()
	assert.Equal(t, 1, run([]string{"diff", "units", "more"}, &out, &errs))
	assert.Contains(t, out.String(), "concurrent 8 hold 1m → concurrent 9 hold 1m")
	assert.Contains(t, out.String(), "concurrent 1 hold 1m → concurrent 2 hold 1m")
	assert.NotContains(t, out.String(), "20")
	out.Reset()
	assert.Equal(t, 1, run([]string{"diff", "rates", "units"}, &out, &errs))
	assert.Contains(t, out.String(), "sliding-log 8/m → concurrent 8 hold 1m")
	for who, want := range map[string]string{"user=ann": "concurrent 8 hold 1m", "user=eve": "concurrent 1 hold 1m", "user=pat plan=pro": "concurrent 20 hold 1m"} {
		out.Reset()
		args := []string{"explain", "units"}
		for _, a := range bytes.Fields([]byte(who)) {
			args = append(args, string(a))
		}
		assert.Equal(t, 0, run(args, &out, &errs), errs.String())
		assert.Contains(t, out.String(), want, who)
	}
}
