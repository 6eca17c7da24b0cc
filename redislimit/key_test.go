package redislimit

import (
	"math"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// tagOf returns the part of a key hashed by a Redis Cluster.
func tagOf(key string) string {
	_, rest, ok := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !ok || !closed || tag == "" {
		return key
	}
	return tag
}

func awkwardKeys() []string {
	return []string{"", "a", "b", "{", "}", "{}", "}{", "{a}", "a}", "{a", "a}:b", "a:b", "#{a", ":{a}", "\x00", "\xff\xfe", "a b", "ä", "a\r\n",
		"e3b0c44298fc1c14", "{e3b0c44298fc1c14}:", strings.Repeat("k", 200), strings.Repeat("k", 201), strings.Repeat("}", 201),
		strings.Repeat("k", 10<<20), "87f2f5f2b0d1b0d1"}
}

func TestKeysAreNeverMistakenForEachOther(t *testing.T) {
	for name, slot := range map[string]func(string) string{
		"no slot": nil,
		"one":     func(string) string { return "one" },
		"empty":   func(string) string { return "" },
		"odd":     func(k string) string { return "}" + k[:min(len(k), 1)] },
	} {
		n, err := newNamespace("", "limit", slot)
		require.NoError(t, err)
		seen := make(map[string]string)
		for _, key := range awkwardKeys() {
			redisKey := n.key(key)
			other, ok := seen[redisKey]
			assert.False(t, ok, "%s: %.40q and %.40q", name, key, other)
			seen[redisKey] = key
			assert.Less(t, len(redisKey), 500)
			assert.True(t, strings.HasPrefix(redisKey, "ratelimit:limit"))
		}
	}
}

func TestTheSlotIsChosenByTheKeyAlone(t *testing.T) {
	a, err := newNamespace("", "a", nil)
	require.NoError(t, err)
	b, err := newNamespace("other-", "b", nil)
	require.NoError(t, err)
	for _, key := range awkwardKeys() {
		assert.Equal(t, tagOf(a.key(key)), tagOf(b.key(key)), "%.40q", key)
		assert.NotEqual(t, a.key(key), tagOf(a.key(key)), "%.40q has a hash tag", key)
	}
	assert.Equal(t, "user:42", tagOf(a.key("user:42")))
	assert.NotEqual(t, tagOf(a.key("{x}1")), tagOf(a.key("{x}2")), "a tag in a user's key moves nothing")
}

func TestEqualSlotsShareATag(t *testing.T) {
	for _, slot := range []string{"s", "", "}", strings.Repeat("s", 1000), "{s}"} {
		n, err := newNamespace("", "a", func(string) string { return slot })
		require.NoError(t, err)
		for _, key := range awkwardKeys() {
			assert.Equal(t, tagOf(n.key("x")), tagOf(n.key(key)))
		}
	}
}

func TestNewNamesTheFault(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	var none *redis.Client
	good := perMinute(5).Named("ok")
	for want, c := range map[string]struct {
		client redis.UniversalClient
		limit  ratelimit.Limit
		opts   *Options
	}{
		"client is nil":                  {nil, good, nil},
		"redislimit: New: client is nil": {none, good, nil},
		"Options.Name and the limit's":   {client, perMinute(5), &Options{}},
		`Options.Prefix is "{a}"`:        {client, good, &Options{Prefix: "{a}"}},
		`Options.Name is "a}"`:           {client, good, &Options{Name: "a}"}},
		"Options.MaxLog is -1":           {client, good, &Options{MaxLog: -1}},
		"Options.Batch is -1":            {client, good, &Options{Batch: -1}},
		"invalid limit: Rate.Units is 0": {client, perMinute(0).Named("x"), nil},
		"Rate.Units is 2001 for a":       {client, ratelimit.SlidingLog(ratelimit.PerDay(2001)).Named("x"), nil},
		"Rate.Units is 11 for a":         {client, ratelimit.SlidingLog(ratelimit.PerDay(11)).Named("x"), &Options{MaxLog: 10}},
		"Rate.Per is 1.5µs, want whole":  {client, ratelimit.FixedWindow(ratelimit.Per(1, 1500)).Named("x"), nil},
	} {
		_, err := New(c.client, c.limit, c.opts)
		assert.ErrorContains(t, err, want)
	}
	if big := int64(1) << 52; big <= math.MaxInt { // only here can an int be too large for a script
		_, err := New(client, ratelimit.TokenBucket(ratelimit.Per(int(big), 1<<20), int(2*big)).Named("x"), nil)
		assert.ErrorContains(t, err, "Burst is 9007199254740992")
		_, err = New(client, ratelimit.FixedWindow(ratelimit.Per(int(2*big), 1<<20*1000)).Named("x"), nil)
		assert.ErrorContains(t, err, "Rate.Units is 9007199254740992 in")
	}
	l, err := New(client, good, nil)
	require.NoError(t, err)
	assert.ErrorIs(t, l.SetLimit(ratelimit.SlidingLog(ratelimit.PerDay(2001))), ratelimit.ErrInvalidLimit)
	assert.Equal(t, []ratelimit.Limit{good}, l.Describe().Limits)
}

func TestEveryKeyHasItsOwnBudget(t *testing.T) {
	f := newFixture(t)
	l := f.real(perMinute(10))
	for _, key := range awkwardKeys() {
		d, err := l.Take(t.Context(), key, 10)
		require.NoError(t, err)
		assert.True(t, d.Allowed, "%.40q", key)
		assert.False(t, l.Allow(key, 9))
	}
	assert.EqualValues(t, len(awkwardKeys()), f.client.DBSize(t.Context()).Val())
}

// Slot receives the whole key: a client must not be able to leave its tenant's slot with a long key.
func TestOptionsSlotGetsKeysOfAnyLength(t *testing.T) {
	tenant := func(key string) string { name, _, _ := strings.Cut(key, "/"); return name }
	n, err := newNamespace("", "a", tenant)
	require.NoError(t, err)
	for _, size := range []int{1, 150, 200, 201, 5000} {
		assert.Equal(t, tagOf(n.key("acme/x")), tagOf(n.key("acme/"+strings.Repeat("k", size))), "%d bytes", size)
		assert.NotEqual(t, tagOf(n.key("acme/x")), tagOf(n.key("emca/"+strings.Repeat("k", size))), "%d bytes", size)
	}
}
