package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

func TestExplainReportsTheRemainingBudgetOnRedis(t *testing.T) {
	addr := redistest.Start(t).Addr
	file := filepath.Join(t.TempDir(), "rules.yaml")
	const rules = "rules:\n- {name: users, key: user, limit: fixed-window 2/h, plans: {pro: fixed-window 9/h}}\n- {name: trial, shadow: true, limit: fixed-window 1/h}\n"
	require.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	defer client.Close()
	set, err := policy.Parse([]byte(rules))
	require.NoError(t, err)
	service, err := policy.New(set, &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Prefix: "p:", Timeout: time.Minute})})
	require.NoError(t, err)
	for range 3 {
		service.Allow(policy.Attributes{"user": "ann"}, 1)
	}
	for _, test := range []struct {
		args   []string
		status int
		out    string
	}{
		{[]string{"-prefix", "p:", file, "user=ann"}, 0, `users: fixed-window 2/h (from the rule), key "ann", cost 1 of 2; now: denies it, 0 left, retry in `},
		{[]string{"-prefix", "p:", file, "user=ann", "plan=pro"}, 0, `(from plan pro), key "ann", cost 1 of 9; now: allows it, 7 left`},
		{[]string{"-prefix", "p:", file, "user=ann"}, 0, "trial: fixed-window 1/h (from the rule), one budget for all, cost 1 of 1, a shadow: never denies; now: denies it"},
		{[]string{"-prefix", "other:", file, "user=ann"}, 0, "now: allows it, 2 left"},
		{[]string{"-prefix", "p:", "-json", file, "user=ann"}, 0, `"retry_after": 3`},
		{[]string{"-prefix", "p:", file}, 1, "refused: "},
		{[]string{file, "user"}, 2, ""},
		{[]string{file, "user=a", "user=b"}, 2, ""},
		{[]string{"none"}, 2, ""},
		{nil, 2, ""},
	} {
		var out, errs bytes.Buffer
		assert.Equal(t, test.status, run(append([]string{"-redis", "redis://" + addr}, test.args...), &out, &errs), "%v %s", test.args, errs.String())
		assert.Contains(t, out.String(), test.out)
	}
	var out, errs bytes.Buffer
	assert.Equal(t, 2, run([]string{"-redis", "redis://127.0.0.1:1", file, "user=ann"}, &out, &errs))
	out.Reset()
	require.NoError(t, os.WriteFile(file, []byte("rules:\n- {name: trial, shadow: true, limit: fixed-window 1/h}\n"), 0o600))
	assert.Equal(t, 2, run([]string{"-redis", "redis://127.0.0.1:1", file, "user=ann"}, &out, &errs), "also of a shadow's budget")
	assert.Equal(t, "trial: cannot decide: the engine has no answer, a shadow: never denies\n", out.String())
	assert.Equal(t, 2, run([]string{"-redis", ":secret", file, "user=ann"}, &out, &errs))
	assert.NotContains(t, errs.String(), "secret")
}

// With Tenant, budgets have other names on Redis.
func TestExplainOfTenants(t *testing.T) {
	addr := redistest.Start(t).Addr
	file := filepath.Join(t.TempDir(), "rules.yaml")
	const rules = "rules:\n- {name: users, key: [tenant, user], limit: fixed-window 5/h}\n- {name: all, limit: fixed-window 100/h}\n"
	require.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	defer client.Close()
	set, err := policy.Parse([]byte(rules))
	require.NoError(t, err)
	engine := policyredis.New(client, &policyredis.Options{Tenant: "tenant", MaxBatch: 10, Timeout: time.Minute})
	service, err := policy.New(set, &policy.Options{Engine: engine})
	require.NoError(t, err)
	for range 3 {
		require.True(t, service.Allow(policy.Attributes{"tenant": "acme", "user": "ann"}, 1))
	}
	require.NoError(t, service.Flush(t.Context()))
	var out, errs bytes.Buffer
	assert.Zero(t, run([]string{"-redis", "redis://" + addr, "-tenant", "tenant", file, "user=ann", "tenant=acme"}, &out, &errs), errs.String())
	assert.Contains(t, out.String(), "cost 1 of 5; now: allows it, 2 left")
	assert.Contains(t, out.String(), "cost 1 of 100; now: allows it, 97 left")
	assert.Zero(t, run([]string{"-h"}, &out, &errs), "help is no mistake")
}

func TestExplainOnACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, false)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	const rules = "rules:\n- {name: users, key: [tenant, user], limit: fixed-window 5/h}\n"
	require.NoError(t, os.WriteFile(file, []byte(rules), 0o600))
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ReadTimeout: time.Minute})
	defer client.Close()
	set, err := policy.Parse([]byte(rules))
	require.NoError(t, err)
	service, err := policy.New(set, &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Tenant: "tenant", Timeout: time.Minute})})
	require.NoError(t, err)
	for i := range 8 {
		tenant := "tenant=" + string(rune('a'+i))
		require.True(t, service.Allow(policy.Attributes{"tenant": tenant[7:], "user": "ann"}, 2))
		var out, errs bytes.Buffer
		assert.Zero(t, run([]string{"-redis", "redis://" + cluster.Addrs()[0], "-cluster", "-tenant", "tenant", file, "user=ann", tenant}, &out, &errs), errs.String())
		assert.Contains(t, out.String(), "now: allows it, 3 left")
	}
}
