package policyredis_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// TestNoCredentialIsStoredOnRedis, neither in a name nor in a value.
func TestNoCredentialIsStoredOnRedis(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr, ReadTimeout: time.Minute})
	defer client.Close()
	p, err := policy.New(parsed(t, "rules:\n- {name: a, key: header:X-API-Key, limit: fixed-window 9/h}\n- {name: b, key: [ip, header:Authorization], limit: sliding-log 9/h}"),
		&policy.Options{Engine: policyredis.New(client, &policyredis.Options{Timeout: time.Minute})})
	require.NoError(t, err)
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-API-Key", "s3cret")
	r.Header.Set("Authorization", "s3cret")
	require.True(t, p.Allow(policy.HTTP(r, nil), 1))
	keys, err := client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.Len(t, keys, 2)
	for _, key := range keys {
		dump, err := client.Dump(t.Context(), key).Result()
		require.NoError(t, err)
		assert.NotContains(t, key+dump, "s3cret")
	}
}
