package keyfunc_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Each request is counted either by the key of a known client or by its address.
func Example() {
	perKey := ratelimit.Must(ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerMinute(2)), nil))
	perIP := ratelimit.Must(ratelimit.New[keyfunc.Pair[string, netip.Addr]](ratelimit.FixedWindow(ratelimit.PerMinute(1)), nil))
	apiKey := httplimit.APIKey("X-API-Key")
	byHost := func(r *http.Request) (string, error) { return r.Host, nil }
	limit := ratelimit.Must(ratelimit.All(
		ratelimit.By(perKey, keyfunc.Optional(apiKey)),
		ratelimit.By(perIP, keyfunc.Otherwise(apiKey, keyfunc.Join(byHost, httplimit.RemoteIP))),
	))
	known, anonymous := httptest.NewRequest("GET", "/", nil), httptest.NewRequest("GET", "/", nil)
	known.Header.Set("X-API-Key", "secret")
	for _, r := range []*http.Request{known, known, known, anonymous, anonymous} {
		fmt.Print(limit.Allow(r, 1), " ")
	}
	fmt.Println(keyfunc.HashOf("secret"))
	// Output: true true false true false 2bb80d537b1da3e3
}

func of[K any](k K, err error) func(string) (K, error) {
	return func(string) (K, error) { return k, err }
}

func TestErrorsOfCombinedKeys(t *testing.T) {
	misconfigured := fmt.Errorf("%w: %w: before routing", keyfunc.ErrMisconfigured, keyfunc.ErrNoKey)
	other := errors.New("other")
	for name, row := range map[string]struct {
		err                    error
		optional, unless, join error
	}{
		"a key":          {nil, nil, ratelimit.SkipLayer, nil},
		"no key":         {keyfunc.ErrNoKey, ratelimit.SkipLayer, nil, keyfunc.ErrNoKey},
		"malformed":      {keyfunc.ErrMalformedKey, keyfunc.ErrMalformedKey, keyfunc.ErrMalformedKey, keyfunc.ErrMalformedKey},
		"misconfigured":  {misconfigured, keyfunc.ErrMisconfigured, keyfunc.ErrMisconfigured, keyfunc.ErrMisconfigured},
		"skipped before": {ratelimit.SkipLayer, ratelimit.SkipLayer, nil, ratelimit.SkipLayer},
		"another error":  {other, other, other, other},
	} {
		t.Run(name, func(t *testing.T) {
			key, good := of(1, row.err), of("k", nil)
			_, err := keyfunc.Optional(key)("")
			assert.ErrorIs(t, err, row.optional)
			k, err := keyfunc.Otherwise(key, good)("")
			assert.ErrorIs(t, err, row.unless)
			if row.unless == nil {
				assert.Equal(t, "k", k)
			}
			pair, err := keyfunc.Join(key, good)("")
			assert.ErrorIs(t, err, row.join)
			if row.join == nil {
				assert.Equal(t, keyfunc.Pair[int, string]{A: 1, B: "k"}, pair)
			}
			_, err = keyfunc.Join(good, key)("")
			assert.ErrorIs(t, err, row.join)
			// If a client leaves out one key, the other key's error still counts.
			for _, none := range []error{keyfunc.ErrNoKey, ratelimit.SkipLayer} {
				missing, want := of("", none), row.err
				if row.optional == nil || row.optional == ratelimit.SkipLayer {
					want = ratelimit.SkipLayer
				}
				_, err = keyfunc.Optional(keyfunc.Join(missing, key))("")
				assert.ErrorIs(t, err, want)
				_, err = keyfunc.Optional(keyfunc.Join(key, missing))("")
				assert.ErrorIs(t, err, want)
			}
		})
	}
}
