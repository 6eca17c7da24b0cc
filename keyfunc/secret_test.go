package keyfunc_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
)

// text is these tests' key function: a request is its own text.
func text(r string) (string, error) { return r, nil }

func TestASecretIsHashed(t *testing.T) {
	for _, secret := range []string{"s", " s ", "Bearer s", strings.Repeat("long", 1000)} {
		got, err := keyfunc.APIKey(text)(secret)
		require.NoError(t, err)
		assert.Equal(t, keyfunc.HashOf(secret), got)
	}
	other := errors.New("other")
	for _, none := range []error{keyfunc.ErrNoKey, keyfunc.ErrMalformedKey, ratelimit.SkipLayer, other} {
		got, err := keyfunc.APIKey(of("s3cret", none))("")
		assert.Equal(t, none, err, "the function's own")
		assert.Zero(t, got)
		_, err = keyfunc.BearerToken(of("Bearer s3cret", none))("")
		assert.Equal(t, none, err)
	}
	_, err := keyfunc.APIKey(text)("")
	assert.ErrorIs(t, err, keyfunc.ErrNoKey, "all requests without a text would share a budget")
	assert.PanicsWithError(t, "keyfunc: APIKey: key is nil", func() { keyfunc.APIKey[string](nil) })
	assert.PanicsWithError(t, "keyfunc: BearerToken: key is nil", func() { keyfunc.BearerToken[string](nil) })
}

// A text too long for a key has a hash of the usual length.
func TestASecretThatIsTooLongForAKeyIsHashed(t *testing.T) {
	long := strings.Repeat("long", 1000)
	short := func(r string) (string, error) { return keytext.Short(r, "field") }
	_, err := short(long)
	require.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	got, err := keyfunc.APIKey(short)(long)
	require.NoError(t, err)
	assert.Equal(t, keyfunc.HashOf(long), got)
	got, err = keyfunc.BearerToken(keyfunc.Optional(short))("Bearer " + long)
	require.NoError(t, err)
	assert.Equal(t, keyfunc.HashOf(long), got)
	_, err = keyfunc.BearerToken(short)("Basic " + long)
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)

	r := &http.Request{Header: http.Header{"X-Api-Key": {long}}}
	got, err = keyfunc.APIKey(httplimit.Header("X-API-Key"))(r)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Must(httplimit.APIKey("X-API-Key")(r)), got)
}

func TestBearerTokens(t *testing.T) {
	token := keyfunc.BearerToken(text)
	for value, want := range map[string]string{
		"Bearer t": "t", "bearer t": "t", "BEARER   t": "t", " Bearer t\t": "t", "Bearer a.b-c_d~e+f/g==": "a.b-c_d~e+f/g==",
	} {
		got, err := token(value)
		assert.NoError(t, err, value)
		assert.Equal(t, keyfunc.HashOf(want), got)
	}
	for value, want := range map[string]error{
		"": keyfunc.ErrNoKey, "Bearer": keyfunc.ErrNoKey, "Bearer ": keyfunc.ErrNoKey, "Basic s3cret": keyfunc.ErrNoKey,
		"s3cret": keyfunc.ErrNoKey, "Bearers3cret": keyfunc.ErrNoKey, "Bearer,s3cret": keyfunc.ErrNoKey, ", Bearer s3cret": keyfunc.ErrNoKey,
		"Basic x, Bearer s3cret": keyfunc.ErrNoKey, "Bearer s3cret, Basic x": keyfunc.ErrMalformedKey, "Bearer x,s3cret": keyfunc.ErrMalformedKey,
		"Bearer x s3cret": keyfunc.ErrMalformedKey, "Bearer x\ts3cret": keyfunc.ErrMalformedKey, "Bearer\ts3cret": keyfunc.ErrMalformedKey,
	} {
		got, err := token(value)
		assert.ErrorIs(t, err, want, value)
		assert.Zero(t, got, value)
		assert.NotContains(t, err.Error(), "s3cret")
	}
	_, err := httplimit.BearerToken(&http.Request{Header: http.Header{"Authorization": {"Bearer x", "Bearer s3cret"}}})
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
}

// Calls in another protocol have the same hashes as HTTP requests with the same secrets.
func ExampleAPIKey() {
	type secret struct{}
	inContext := func(ctx context.Context) (string, error) {
		s, ok := ctx.Value(secret{}).(string)
		if !ok {
			return "", fmt.Errorf("%w: no secret", keyfunc.ErrNoKey)
		}
		return s, nil
	}
	apiKey := keyfunc.APIKey(inContext)
	key, err := apiKey(context.WithValue(context.Background(), secret{}, "s3cret"))
	fmt.Println(key == keyfunc.HashOf("s3cret"), err)
	_, err = apiKey(context.Background())
	fmt.Println(err)
	// Output:
	// true <nil>
	// no key: no secret
}
