package edge_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/clientaddr"
	"github.com/weir-go/ratelimit/internal/edge"
)

var quiet = slog.New(slog.DiscardHandler)

// logger returns a logger, and the buffer with its lines. The lines have no time.
func logger() (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})), &b
}

// from returns a Client. Its requests all come from one address, with the given header fields.
func from(addr string, lower bool, fields map[string]string) edge.Client[*request] {
	return edge.Client[*request]{
		Package: "test", Lower: lower,
		Peer: func(*request) clientaddr.Peer { return clientaddr.Peer{Addr: netip.MustParseAddr(addr)} },
		Field: func(_ *request, name string) []string {
			if v, ok := fields[name]; ok {
				return []string{v}
			}
			return nil
		},
	}
}

// A client with a public address may write such a field itself, so no warning is logged for it.
func TestPerIPBehindAProxyIsWarnedOfOnce(t *testing.T) {
	for name, row := range map[string]struct {
		addr   string
		field  string
		lower  bool
		warned string // the field in the warning
	}{
		"a private address":           {"10.0.0.1", "X-Forwarded-For", false, "X-Forwarded-For"},
		"the same machine":            {"127.0.0.1", "Forwarded", false, "Forwarded"},
		"a link-local address":        {"fe80::1", "X-Real-Ip", false, "X-Real-Ip"},
		"an address of a carrier":     {"100.64.0.1", "Cf-Connecting-Ip", false, "Cf-Connecting-Ip"},
		"metadata":                    {"10.0.0.1", "true-client-ip", true, "True-Client-Ip"},
		"a public address":            {"192.0.2.1", "X-Forwarded-For", false, ""},
		"no field of a proxy":         {"10.0.0.1", "X-Other", false, ""},
		"a field in another spelling": {"10.0.0.1", "x-forwarded-for", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			log, lines := logger()
			l := ratelimit.Must(from(row.addr, row.lower, map[string]string{row.field: "198.51.100.7"}).PerIP(ratelimit.FixedWindow(ratelimit.PerHour(2)), "another", log))
			for n := range 3 {
				assert.Equal(t, n < 2, l.Allow(&request{t.Context()}, 1))
			}
			want := ""
			if row.warned != "" {
				want = `level=WARN msg="test: PerIP gives one budget to all clients of a proxy: use another" field=` + row.warned + "\n"
			}
			assert.Equal(t, want, lines.String())
		})
	}
}

func TestAClientIsFoundByItsAddressAndTheFieldsOfProxies(t *testing.T) {
	fields := map[string]string{"X-Forwarded-For": "198.51.100.7", "Authorization": "Bearer s", "x-forwarded-for": "203.0.113.9"}
	c := from("10.0.0.1", false, fields)
	addr, err := c.RemoteIP(nil)
	require.NoError(t, err)
	assert.Equal(t, "10.0.0.1", addr.String())
	for lower, want := range map[bool]string{false: "198.51.100.7", true: "203.0.113.9"} {
		find := ratelimit.Must(from("10.0.0.1", lower, fields).ClientIP(clientaddr.Options{TrustedHops: 1}))
		addr, err = find(nil)
		require.NoError(t, err)
		assert.Equal(t, want, addr.String())
	}
	assert.Equal(t, "10.0.0.1\n198.51.100.7\nBearer s", c.Identity(nil))
	_, err = c.ClientIP(clientaddr.Options{TrustedHops: -1})
	assert.ErrorContains(t, err, "test: ClientIPOptions.TrustedHops is -1")
	_, err = c.PerIP(ratelimit.Limit{}, "", nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestADelayOutlastsTheServerFromItsTimeoutOn(t *testing.T) {
	for name, row := range map[string]struct {
		server      *http.Server
		below, from bool
	}{
		"no server":        {nil, false, false},
		"no timeouts":      {&http.Server{}, false, false},
		"WriteTimeout":     {&http.Server{WriteTimeout: time.Second}, false, true},
		"ReadTimeout":      {&http.Server{ReadTimeout: time.Second}, false, true},
		"a longer one too": {&http.Server{ReadTimeout: time.Minute, WriteTimeout: time.Second}, false, true},
		"both are shorter": {&http.Server{ReadTimeout: time.Millisecond, WriteTimeout: time.Millisecond}, true, true},
	} {
		ctx := context.Background()
		if row.server != nil {
			ctx = context.WithValue(ctx, http.ServerContextKey, row.server)
		}
		assert.Equal(t, row.below, edge.OutlastsServer(ctx, time.Second-1), name)
		assert.Equal(t, row.from, edge.OutlastsServer(ctx, time.Second), name)
		assert.False(t, edge.OutlastsServer(ctx, 0), name)
	}
}

func TestRecentKeepsWhatWasUsedLast(t *testing.T) {
	const sure = 16 << 10
	var c edge.Recent[int, string]
	c.Clear()
	c.Add(-1, "used")
	c.Add(-2, "not used")
	c.Add(-1, "replaced")
	for i := range 4 * sure {
		c.Add(i, "other")
		if v, ok := c.Find(-1); i%sure == 0 {
			assert.True(t, ok)
			assert.Equal(t, "replaced", v)
		}
	}
	_, ok := c.Find(-2)
	assert.False(t, ok)
	for i := 3 * sure; i < 4*sure; i++ {
		_, ok := c.Find(i)
		require.True(t, ok, i)
	}
	c.Clear()
	_, ok = c.Find(-1)
	assert.False(t, ok)
}

func TestCompleteChallengeBelongsToA401Alone(t *testing.T) {
	for name, row := range map[string]struct {
		code            int
		challenge, want string
		err             string
	}{
		"by default":   {401, "", "Bearer", ""},
		"one's own":    {401, "Basic realm=x", "Basic realm=x", ""},
		"another code": {400, "", "", ""},
		"not sent":     {400, "Basic", "", "Options.Challenge is given, and KeyCode is 400, want 401"},
		"a line feed":  {401, "a\nb", "", `Options.Challenge has '\n' at position 1, which a header field cannot carry`},
		"no ASCII":     {401, "ä", "", `Options.Challenge has 'ä' at position 0, which a header field cannot carry`},
		"the last":     {401, " ~", " ~", ""},
	} {
		got := row.challenge
		err := edge.CompleteChallenge("Options", row.code, 401, &got)
		if row.err != "" {
			assert.EqualError(t, err, row.err, name)
			continue
		}
		assert.NoError(t, err, name)
		assert.Equal(t, row.want, got, name)
	}
}
