package clientaddr_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/clientaddr"
	"github.com/weir-go/ratelimit/keyfunc"
)

// request has the parts of a request that identify its client: the peer's address, and one header's lines.
type request struct {
	peer, header string
	lines        []string
	unix         bool // whether the peer came over a Unix socket
}

func from(peer, header string, lines ...string) request {
	return request{peer: peer, header: header, lines: lines}
}

// finding returns a key function for requests.
func finding(f *clientaddr.Finder) func(request) (netip.Addr, error) {
	return func(r request) (netip.Addr, error) {
		return f.Find(clientaddr.Peer{Addr: clientaddr.Parse(r.peer), Unix: r.unix}, func() []string {
			if r.header != f.Name() {
				return nil
			}
			return r.lines
		})
	}
}

func clientIP(t testing.TB, o clientaddr.Options) func(request) (netip.Addr, error) {
	t.Helper()
	return finding(finder(t, o))
}

// trusted lists the trusted proxies in the following tests.
var trusted = []string{"10.0.0.0/8", "fd00::/8", "::ffff:172.16.0.0/108"}

func prefixes(t testing.TB, texts ...string) (all []netip.Prefix) {
	t.Helper()
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		require.NoError(t, err)
		all = append(all, p)
	}
	return all
}

// These are results in the rows, apart from addresses.
const (
	malformed = "malformed"
	noKey     = "no key"
)

func assertClient(t *testing.T, want string, r request, key func(request) (netip.Addr, error)) {
	t.Helper()
	got, err := key(r)
	switch want {
	case malformed:
		assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
		assert.Equal(t, netip.Addr{}, got)
	case noKey:
		assert.ErrorIs(t, err, keyfunc.ErrNoKey)
		assert.Equal(t, netip.Addr{}, got)
	default:
		require.NoError(t, err)
		assert.Equal(t, want, got.String())
	}
}

func TestPeerIsTheClientUnlessItIsTrusted(t *testing.T) {
	key := clientIP(t, clientaddr.Options{TrustedProxies: prefixes(t, trusted...)})
	for peer, want := range map[string]string{
		"192.0.2.1:1234":                "192.0.2.1",
		"192.0.2.1":                     "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:443":    "2001:db8:1:2::",
		"2001:db8:1:2:3:4:5:6":          "2001:db8:1:2::",
		"[fe80::1%eth0]:443":            "fe80::",
		"[::ffff:192.0.2.1]:80":         "192.0.2.1",
		"[::ffff:c000:201]:80":          "192.0.2.1",
		"[2001:db8::1.2.3.4]:80":        "2001:db8::",
		"@":                             malformed,
		"":                              malformed,
		"/run/app.sock":                 malformed,
		"[::1":                          malformed,
		"[192.0.2.1]:80":                malformed,
		"192.0.2.1:port":                malformed,
		"192.0.2.1%eth0:80":             malformed,
		"[::ffff:192.0.2.1%eth0]:80":    malformed,
		"[fe80::1%]:80":                 malformed,
		"192.0.2.010:80":                malformed,
		"192.0.2.1:123456":              malformed,
		strings.Repeat("1", 10_000):     malformed,
		"[2001:db8:1:2:3:4:5:6]443":     malformed,
		"[2001:db8:1:2:3:4:5:6]:443:80": malformed,
	} {
		t.Run(peer[:min(len(peer), 40)], func(t *testing.T) {
			assertClient(t, want, from(peer, "X-Forwarded-For", "203.0.113.66"), key)
		})
	}
}

func TestHeaderThatProxiesDoNotWriteIsNotRead(t *testing.T) {
	proxies := prefixes(t, trusted...)
	assertClient(t, noKey, from("10.0.0.1:80", "Forwarded", "for=6.6.6.6"),
		clientIP(t, clientaddr.Options{TrustedProxies: proxies}))
	assertClient(t, noKey, from("10.0.0.1:80", "X-Forwarded-For", "6.6.6.6"),
		clientIP(t, clientaddr.Options{TrustedProxies: proxies, Header: "Forwarded"}))
	assertClient(t, noKey, from("10.0.0.1:80", "X-Real-Ip", "6.6.6.6"),
		clientIP(t, clientaddr.Options{TrustedProxies: proxies}))
}

func TestZeroOptionsTrustNoPeer(t *testing.T) {
	for _, key := range []func(request) (netip.Addr, error){clientIP(t, clientaddr.Options{}), finding(clientaddr.Remote())} {
		assertClient(t, "10.0.0.1", from("10.0.0.1:80", "X-Forwarded-For", "6.6.6.6"), key)
		assertClient(t, "2001:db8:1:2::", from("[2001:db8:1:2:3::]:80", "X-Forwarded-For", "6.6.6.6"), key)
		assertClient(t, malformed, from("@", "X-Forwarded-For", "6.6.6.6"), key)
	}
}

// nginx on the same host connects over a Unix socket, so it has no address. Its header is used if the socket is trusted.
func TestPeersOfAUnixSocketMayBeTrusted(t *testing.T) {
	list := clientaddr.Options{TrustUnixSockets: true, TrustedProxies: prefixes(t, "10.0.0.0/8")}
	hops := clientaddr.Options{TrustUnixSockets: true, TrustedHops: 2}
	single := clientaddr.Options{TrustUnixSockets: true, Header: "x-real-ip", IPv6Bits: 56}
	forwarded := clientaddr.Options{TrustUnixSockets: true, Header: "Forwarded"}
	unix := func(r request) request {
		r.peer, r.unix = "@", true
		return r
	}
	for name, row := range map[string]struct {
		opts clientaddr.Options
		r    request
		want string
	}{
		"a list":                      {list, unix(from("", "X-Forwarded-For", "6.6.6.6, 203.0.113.7, 10.0.0.1")), "203.0.113.7"},
		"a list without the client":   {list, unix(from("", "X-Forwarded-For", "10.0.0.1")), noKey},
		"Forwarded":                   {forwarded, unix(from("", "Forwarded", "for=6.6.6.6, for=203.0.113.7")), "203.0.113.7"},
		"hops":                        {hops, unix(from("", "X-Forwarded-For", "6.6.6.6, 203.0.113.7, 198.51.100.1")), "203.0.113.7"},
		"hops of a peer by TCP":       {hops, from("192.0.2.1:80", "X-Forwarded-For", "6.6.6.6, 203.0.113.7"), "192.0.2.1"},
		"one address":                 {single, unix(from("", "X-Real-Ip", "203.0.113.7")), "203.0.113.7"},
		"one address, cut":            {single, unix(from("", "X-Real-Ip", "2001:db8:1:2345::1")), "2001:db8:1:2300::"},
		"two addresses":               {single, unix(from("", "X-Real-Ip", "203.0.113.7", "203.0.113.8")), malformed},
		"no address":                  {single, unix(from("", "X-Real-Ip")), noKey},
		"one address, peer by TCP":    {single, from("192.0.2.1:80", "X-Real-Ip", "6.6.6.6"), "192.0.2.1"},
		"no address, not a socket":    {single, from("@", "X-Real-Ip", "6.6.6.6"), malformed},
		"not trusted":                 {clientaddr.Options{TrustedProxies: prefixes(t, "10.0.0.0/8")}, unix(from("", "X-Forwarded-For", "6.6.6.6")), malformed},
		"not trusted, with hops":      {clientaddr.Options{TrustedHops: 1, TrustedProxies: prefixes(t, "10.0.0.0/8")}, unix(from("", "X-Forwarded-For", "6.6.6.6")), malformed},
		"everyone trusted, with hops": {clientaddr.Options{TrustedHops: 1}, unix(from("", "X-Forwarded-For", "6.6.6.6, 203.0.113.7")), "203.0.113.7"},
	} {
		t.Run(name, func(t *testing.T) { assertClient(t, row.want, row.r, clientIP(t, row.opts)) })
	}
}

// In each row, a client tries to spoof its address. The lines are the header as the proxies pass it on.
func TestSpoofedForwardedForIsSeenThrough(t *testing.T) {
	key := clientIP(t, clientaddr.Options{TrustedProxies: prefixes(t, trusted...)})
	for name, row := range map[string]struct {
		want  string
		lines []string
	}{
		"honest client":                             {"203.0.113.7", []string{"203.0.113.7"}},
		"client invents an entry before":            {"203.0.113.7", []string{"6.6.6.6, 203.0.113.7"}},
		"client claims to be a proxy":               {"203.0.113.7", []string{"10.0.0.9, 203.0.113.7"}},
		"two proxies":                               {"203.0.113.7", []string{"6.6.6.6, 203.0.113.7, 10.0.0.2"}},
		"proxy written as IPv4-mapped":              {"203.0.113.7", []string{"203.0.113.7, ::ffff:10.0.0.1"}},
		"proxy written as mapped, in hex":           {"203.0.113.7", []string{"203.0.113.7, ::ffff:a00:1"}},
		"proxy trusted by a mapped prefix":          {"203.0.113.7", []string{"203.0.113.7, 172.16.3.4"}},
		"mapped proxy, trusted by a mapped prefix":  {"203.0.113.7", []string{"203.0.113.7, ::ffff:172.16.3.4"}},
		"proxy with a zone":                         {"203.0.113.7", []string{"203.0.113.7, fd00::1%eth0"}},
		"client written as mapped":                  {"203.0.113.7", []string{"::ffff:203.0.113.7"}},
		"client written as mapped, in hex":          {"1.2.3.4", []string{"::ffff:102:304"}},
		"IPv6 that only looks like IPv4":            {"2001:db8::", []string{"2001:db8::1.2.3.4"}},
		"IPv4-compatible is not IPv4":               {"::", []string{"::10.0.0.1"}},
		"own line before the proxy's":               {"203.0.113.7", []string{"6.6.6.6", "203.0.113.7"}},
		"own line claims to be a proxy":             {"203.0.113.7", []string{"10.0.0.1", "203.0.113.7", "10.0.0.2"}},
		"port after IPv4":                           {"203.0.113.7", []string{"203.0.113.7:50123"}},
		"brackets and port after IPv6":              {"2001:db8:1:2::", []string{"[2001:db8:1:2::5]:50123"}},
		"another host of the same /64":              {"2001:db8:1:2::", []string{"2001:db8:1:2:ffff:eeee:dddd:cccc"}},
		"loopback with a port is what it says":      {"::", []string{"[::1]:80"}},
		"white space and tabs":                      {"203.0.113.7", []string{"6.6.6.6 ,\t 203.0.113.7 \t"}},
		"10 kB of invention before":                 {"203.0.113.7", []string{strings.Repeat("6.6.6.6, ", 1200) + "203.0.113.7"}},
		"garbage before the client is not read":     {"203.0.113.7", []string{`"><script>, ,,;=, 203.0.113.7`}},
		"garbage where the client should be":        {malformed, []string{"6.6.6.6, unknown"}},
		"garbage between proxies":                   {malformed, []string{"6.6.6.6, _hidden, 10.0.0.2"}},
		"IPv4 with a zone claims to be a proxy":     {malformed, []string{"6.6.6.6, 10.0.0.1%eth0"}},
		"mapped with a zone claims to be a proxy":   {malformed, []string{"6.6.6.6, ::ffff:10.0.0.1%eth0"}},
		"leading zeros claim to be a proxy":         {malformed, []string{"6.6.6.6, 010.0.0.1"}},
		"three numbers claim to be a proxy":         {malformed, []string{"6.6.6.6, 10.0.1"}},
		"empty entry is not skipped":                {malformed, []string{"6.6.6.6,,"}},
		"empty entry between proxies is not either": {malformed, []string{"6.6.6.6,,10.0.0.2"}},
		"empty last line is not either":             {malformed, []string{"6.6.6.6", ""}},
		"10 kB of one entry":                        {malformed, []string{strings.Repeat("1", 10_000)}},
		"nobody but proxies":                        {noKey, []string{"10.0.0.9, 10.0.0.2"}},
		"nobody at all":                             {noKey, nil},
	} {
		t.Run(name, func(t *testing.T) {
			assertClient(t, row.want, from("10.0.0.1:9000", "X-Forwarded-For", row.lines...), key)
		})
	}
}

func TestSpoofedForwardedIsSeenThrough(t *testing.T) {
	key := clientIP(t, clientaddr.Options{TrustedProxies: prefixes(t, trusted...), Header: "Forwarded"})
	for name, row := range map[string]struct {
		want  string
		lines []string
	}{
		"honest client":                           {"203.0.113.7", []string{"for=203.0.113.7"}},
		"with what else there is to say":          {"203.0.113.7", []string{`by=10.0.0.1;For=203.0.113.7;host="a,b;c=\"d";proto=https`}},
		"quoted":                                  {"203.0.113.7", []string{`for="203.0.113.7"`}},
		"quoted with a port":                      {"203.0.113.7", []string{`for="203.0.113.7:4711"`}},
		"with an obfuscated port":                 {"203.0.113.7", []string{`for="203.0.113.7:_p-1"`}},
		"IPv6":                                    {"2001:db8:cafe::", []string{`for="[2001:db8:cafe::17]:4711"`}},
		"IPv6 without the quotes it needs":        {"2001:db8:cafe::", []string{`for=[2001:db8:cafe::17]`}},
		"client invents an element before":        {"203.0.113.7", []string{"for=6.6.6.6, for=203.0.113.7"}},
		"two proxies, one mapped":                 {"203.0.113.7", []string{`for=203.0.113.7, for="[::ffff:10.0.0.1]"`}},
		"own line before the proxy's":             {"203.0.113.7", []string{"for=6.6.6.6", "for=203.0.113.7"}},
		"open quote on an own line":               {"203.0.113.7", []string{`for="`, "for=203.0.113.7"}},
		"comma inside a quoted string":            {"203.0.113.7", []string{`for=203.0.113.7;host="x, for=6.6.6.6"`}},
		"hidden element before the client":        {"203.0.113.7", []string{"for=_hidden, for=203.0.113.7"}},
		"empty pairs":                             {"203.0.113.7", []string{"; for=203.0.113.7 ; "}},
		"open quote swallows the proxy's element": {malformed, []string{`for="6.6.6.6, for=203.0.113.7`}},
		"open quote meets the proxy's quotes":     {malformed, []string{`for=";x=, for="[2001:db8::1]"`}},
		"escape before the proxy's element":       {malformed, []string{`for="6.6.6.6\", for="[2001:db8::1]"`}},
		"escapes in an address":                   {malformed, []string{`for="203.0.113.\7"`}},
		"unknown":                                 {malformed, []string{"for=6.6.6.6, for=unknown"}},
		"hidden":                                  {malformed, []string{"for=6.6.6.6, for=_SEVKISEK"}},
		"element without for":                     {malformed, []string{"for=6.6.6.6, proto=https"}},
		"empty element":                           {malformed, []string{"for=6.6.6.6,,"}},
		"empty line":                              {malformed, []string{"for=6.6.6.6", ""}},
		"for twice":                               {malformed, []string{"for=203.0.113.7;for=6.6.6.6"}},
		"no equals sign":                          {malformed, []string{"203.0.113.7"}},
		"space round the equals sign":             {malformed, []string{"for = 203.0.113.7"}},
		"no name":                                 {malformed, []string{"=203.0.113.7"}},
		"words after a quoted string":             {malformed, []string{`for="203.0.113.7"x`}},
		"two values":                              {malformed, []string{`for=203.0.113.7 6.6.6.6`}},
		"17 kB":                                   {malformed, []string{strings.Repeat("for=6.6.6.6,", 1450) + "for=203.0.113.7"}},
		"nobody but proxies":                      {noKey, []string{`for=10.0.0.9, for="[fd00::1]"`}},
		"nobody at all":                           {noKey, nil},
	} {
		t.Run(name, func(t *testing.T) {
			assertClient(t, row.want, from("[fd00::7]:9000", "Forwarded", row.lines...), key)
		})
	}
}

func TestIPv6BitsAreThePrefixOfOneClient(t *testing.T) {
	for bits, want := range map[int]string{1: "8000::", 48: "aaaa:bbbb:cccc::", 56: "aaaa:bbbb:cccc:dd00::",
		64: "aaaa:bbbb:cccc:dddd::", 128: "aaaa:bbbb:cccc:dddd:eeee:ffff:1:2"} {
		key := clientIP(t, clientaddr.Options{IPv6Bits: bits})
		assertClient(t, want, from("[aaaa:bbbb:cccc:dddd:eeee:ffff:1:2]:80", "X"), key)
		assertClient(t, "192.0.2.255", from("192.0.2.255:80", "X"), key)
	}
}

// checkKey fails the test if a key breaks a rule common to all keys.
func checkKey(t *testing.T, got netip.Addr, err error, proxies []netip.Prefix) {
	if err != nil {
		require.Equal(t, netip.Addr{}, got)
		return
	}
	require.True(t, got.IsValid())
	require.Empty(t, got.Zone())
	require.False(t, got.Is4In6())
	for _, p := range proxies {
		require.False(t, p.Contains(got), "%v is a trusted proxy", got)
	}
}

func FuzzSpoofedForwardedFor(f *testing.F) {
	for _, s := range []string{"", "1.2.3.4", "1.1.1.1, ::ffff:10.0.0.1", "10.0.0.1%eth0", ",,", "[::1]:80", "a, b", "fd00::1%x, [::1", "1.2.3.4:5, 10.0.0.1"} {
		f.Add(s)
	}
	proxies := prefixes(f, "10.0.0.0/8", "fd00::/8")
	key := clientIP(f, clientaddr.Options{TrustedProxies: proxies, IPv6Bits: 128})
	f.Fuzz(func(t *testing.T, spoof string) {
		got, err := key(from("10.0.0.1:80", "X-Forwarded-For", spoof))
		checkKey(t, got, err, proxies)
		lines, err2 := key(from("10.0.0.1:80", "X-Forwarded-For", strings.Split(spoof, ",")...))
		require.Equal(t, got, lines, "one line or several is the same list")
		require.Equal(t, err == nil, err2 == nil)

		honest := netip.MustParseAddr("203.0.113.7")
		for _, line := range []string{spoof + ", 203.0.113.7", spoof + ",203.0.113.7, 10.0.0.2"} {
			got, err = key(from("10.0.0.1:80", "X-Forwarded-For", line))
			require.NoError(t, err)
			require.Equal(t, honest, got, "whatever the client has written before")
		}
		got, err = key(from("10.0.0.1:80", "X-Forwarded-For", spoof, "203.0.113.7"))
		require.NoError(t, err)
		require.Equal(t, honest, got)
	})
}

func FuzzSpoofedForwarded(f *testing.F) {
	for _, s := range []string{"", "for=1.2.3.4", `for="[2001:db8::1]:80";proto=http, for=10.0.0.1`, `for="`, `for="\`, `for=a;for=b`, `;;,=`, `host="a,b;c\"d";for=1.2.3.4`} {
		f.Add(s)
	}
	proxies := prefixes(f, "10.0.0.0/8", "fd00::/8")
	key := clientIP(f, clientaddr.Options{TrustedProxies: proxies, Header: "Forwarded", IPv6Bits: 128})
	f.Fuzz(func(t *testing.T, spoof string) {
		got, err := key(from("10.0.0.1:80", "Forwarded", spoof))
		checkKey(t, got, err, proxies)

		for honest, element := range map[string]string{"203.0.113.7": "for=203.0.113.7", "2001:db8::7": `for="[2001:db8::7]:80";host="x"`} {
			got, err = key(from("10.0.0.1:80", "Forwarded", spoof+", "+element))
			if err == nil {
				require.Equal(t, honest, got.String(), "the client's own words are not believed")
			} else {
				require.ErrorIs(t, err, keyfunc.ErrMalformedKey)
			}
			got, err = key(from("10.0.0.1:80", "Forwarded", spoof, element))
			require.NoError(t, err)
			require.Equal(t, honest, got.String(), "on a line of its own, they are not even read")
		}
	})
}

// NAT64 and SIIT map all of IPv4 into one /64. A 6to4 host has 65,536 /64s.
func TestTranslatedAddressesAreTheClientsBehindThem(t *testing.T) {
	for addr, want := range map[string]string{
		"64:ff9b::203.0.113.7":    "203.0.113.7",
		"64:ff9b::203.0.113.8":    "203.0.113.8",
		"64:ff9b::1:203.0.113.8":  "64:ff9b::", // RFC 6052 has another prefix
		"::ffff:0:203.0.113.7":    "203.0.113.7",
		"::ffff:203.0.113.7":      "203.0.113.7",
		"64:ff9b:1:fffe::cb00:7":  "64:ff9b:1:fffe::cb00:7",
		"64:ff9b:1:fffe::cb00:8":  "64:ff9b:1:fffe::cb00:8",
		"2002:cb00:7107:1::1":     "2002:cb00:7107::",
		"2002:cb00:7107:ffff::99": "2002:cb00:7107::",
		"2002:cb00:7108:1::1":     "2002:cb00:7108::",
		"2003:cb00:7108:1::1":     "2003:cb00:7108:1::",
	} {
		peer := netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String()
		assertClient(t, want, from(peer, "X"), finding(clientaddr.Remote()))
		behind := clientIP(t, clientaddr.Options{TrustedProxies: prefixes(t, trusted...)})
		assertClient(t, want, from("10.0.0.1:80", "X-Forwarded-For", addr), behind)
	}
	all := clientIP(t, clientaddr.Options{IPv6Bits: 128})
	assertClient(t, "2002:cb00:7107:ffff::99", from("[2002:cb00:7107:ffff::99]:80", "X"), all)
	wide := clientIP(t, clientaddr.Options{IPv6Bits: 32})
	assertClient(t, "2002:cb00::", from("[2002:cb00:7107:ffff::99]:80", "X"), wide)
}

// A client may write a proxy's address in another form, for example as NAT64. It is not taken for the proxy.
func TestTranslatedAddressOfAProxyIsNotTrusted(t *testing.T) {
	key := clientIP(t, clientaddr.Options{TrustedProxies: prefixes(t, trusted...)})
	assertClient(t, "64:ff9b::a00:1", from("10.0.0.1:80", "X-Forwarded-For", "6.6.6.6, 64:ff9b::10.0.0.1"), key)
	assertClient(t, "64:ff9b::a00:1", from("[64:ff9b::a00:1]:80", "X-Forwarded-For", "6.6.6.6"), key)
}

func TestHopsAreCountedFromTheEnd(t *testing.T) {
	for name, row := range map[string]struct {
		hops   int
		header string
		want   string
		lines  []string
	}{
		"one proxy":                             {1, "X-Forwarded-For", "203.0.113.7", []string{"6.6.6.6, 203.0.113.7"}},
		"two proxies":                           {2, "X-Forwarded-For", "203.0.113.7", []string{"6.6.6.6, 203.0.113.7, 198.51.100.1"}},
		"over lines":                            {2, "X-Forwarded-For", "203.0.113.7", []string{"6.6.6.6, 203.0.113.7", "198.51.100.1"}},
		"as many as there are":                  {2, "X-Forwarded-For", "203.0.113.7", []string{"203.0.113.7, 198.51.100.1"}},
		"more than there are":                   {3, "X-Forwarded-For", noKey, []string{"203.0.113.7, 198.51.100.1"}},
		"no header":                             {1, "X-Forwarded-For", noKey, nil},
		"garbage after the client is a proxy's": {2, "X-Forwarded-For", "203.0.113.7", []string{"203.0.113.7, unknown"}},
		"garbage for the client":                {2, "X-Forwarded-For", malformed, []string{"6.6.6.6, unknown, 198.51.100.1"}},
		"empty entry counts":                    {2, "X-Forwarded-For", malformed, []string{"6.6.6.6, , 198.51.100.1"}},
		"Forwarded, one proxy":                  {1, "Forwarded", "203.0.113.7", []string{"for=6.6.6.6, for=203.0.113.7"}},
		"Forwarded, two proxies":                {2, "Forwarded", "203.0.113.7", []string{`for=6.6.6.6, for=203.0.113.7;host="a,b", for="[2001:db8::1]"`}},
		"Forwarded, over lines":                 {2, "Forwarded", "203.0.113.7", []string{"for=6.6.6.6, for=203.0.113.7", "for=198.51.100.1"}},
		"Forwarded, more than there are":        {3, "Forwarded", noKey, []string{"for=203.0.113.7", "for=198.51.100.1"}},
		"Forwarded, client without for":         {2, "Forwarded", malformed, []string{"for=6.6.6.6, proto=http, for=198.51.100.1"}},
		"Forwarded, broken line after":          {2, "Forwarded", malformed, []string{"for=203.0.113.7", `for="`}},
		"Forwarded, pair without equals sign":   {1, "Forwarded", malformed, []string{"for=6.6.6.6, for=203.0.113.7, junk"}},
	} {
		t.Run(name, func(t *testing.T) {
			key := clientIP(t, clientaddr.Options{TrustedHops: row.hops, Header: row.header})
			assertClient(t, row.want, from("192.0.2.1:80", row.header, row.lines...), key)
		})
	}
}

func TestHopsAreCountedBehindAUnixSocket(t *testing.T) {
	key := clientIP(t, clientaddr.Options{TrustedHops: 1})
	assertClient(t, "203.0.113.7", from("@", "X-Forwarded-For", "203.0.113.7"), key)
}

func TestHopsAreCountedForTrustedPeersAlone(t *testing.T) {
	key := clientIP(t, clientaddr.Options{TrustedHops: 2, TrustedProxies: prefixes(t, trusted...)})
	assertClient(t, "203.0.113.7", from("10.0.0.1:80", "X-Forwarded-For", "6.6.6.6, 203.0.113.7, 198.51.100.1"), key)
	assertClient(t, "192.0.2.1", from("192.0.2.1:80", "X-Forwarded-For", "6.6.6.6, 203.0.113.7, 198.51.100.1"), key)
	_, err := clientaddr.New(clientaddr.Options{TrustedHops: -1})
	assert.ErrorContains(t, err, "TrustedHops is -1")
}

func TestPairWithoutEqualsSignIsMalformed(t *testing.T) {
	key := clientIP(t, clientaddr.Options{TrustedProxies: prefixes(t, trusted...), Header: "Forwarded"})
	for _, line := range []string{"for=6.6.6.6, junk", "for=6.6.6.6;junk", "junk, for=203.0.113.7", "for=6.6.6.6, for"} {
		assertClient(t, malformed, from("10.0.0.1:80", "Forwarded", line), key)
	}
}

// Key functions' errors are logged, and a key may be personal data.
func TestErrorsHoldNothingOfTheRequest(t *testing.T) {
	proxies := prefixes(t, trusted...)
	for field, key := range map[string]func(request) (netip.Addr, error){
		"X-Forwarded-For": clientIP(t, clientaddr.Options{TrustedProxies: proxies}),
		"Forwarded":       clientIP(t, clientaddr.Options{TrustedProxies: proxies, Header: "Forwarded"}),
		"X-Real-Ip":       clientIP(t, clientaddr.Options{Header: "X-Real-IP", TrustedProxies: proxies}),
	} {
		for _, peer := range []string{"10.0.0.1:80", "s3cret"} {
			_, err := key(from(peer, field, "for=s3cret", "for=s3cret"))
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "s3cret")
		}
	}
}

func TestOptionsThatCannotBeMeantAreRefused(t *testing.T) {
	for want, opts := range map[string]clientaddr.Options{
		"IPv6Bits is -1":                       {IPv6Bits: -1},
		"IPv6Bits is 129":                      {IPv6Bits: 129},
		"TrustedProxies[1]: invalid Prefix is": {TrustedProxies: append(prefixes(t, "10.0.0.0/8"), netip.Prefix{})},
		"0.0.0.0/0 trusts everybody":           {TrustedProxies: prefixes(t, "0.0.0.0/0")},
		"::/0 trusts everybody":                {TrustedProxies: prefixes(t, "::/0")},
		"[0]: 0.0.0.0/0 trusts everybody":      {TrustedProxies: prefixes(t, "::ffff:0.0.0.0/96")},
		"give the IPv4 prefix":                 {TrustedProxies: prefixes(t, "::ffff:0:0/90")},
	} {
		_, err := clientaddr.New(opts)
		assert.ErrorContains(t, err, want)
	}
}

func TestHeaderIsBelievedFromTrustedPeersAlone(t *testing.T) {
	key := clientIP(t, clientaddr.Options{Header: "cf-connecting-ip", TrustedProxies: prefixes(t, trusted...)})
	const field = "Cf-Connecting-Ip"
	for name, row := range map[string]struct {
		peer, want string
		lines      []string
	}{
		"IPv4":                       {"10.0.0.1:80", "203.0.113.7", []string{"203.0.113.7"}},
		"IPv6, cut to its /64":       {"[fd00::1]:80", "2001:db8:1:2::", []string{"2001:db8:1:2:3::4"}},
		"mapped":                     {"10.0.0.1:80", "203.0.113.7", []string{"::ffff:203.0.113.7"}},
		"white space":                {"10.0.0.1:80", "203.0.113.7", []string{" 203.0.113.7 "}},
		"peer that is not trusted":   {"192.0.2.1:80", "192.0.2.1", []string{"203.0.113.7"}},
		"missing":                    {"10.0.0.1:80", noKey, nil},
		"empty":                      {"10.0.0.1:80", noKey, []string{""}},
		"blank":                      {"10.0.0.1:80", malformed, []string{" "}},
		"no address":                 {"10.0.0.1:80", malformed, []string{"unknown"}},
		"a list":                     {"10.0.0.1:80", malformed, []string{"6.6.6.6, 203.0.113.7"}},
		"twice":                      {"10.0.0.1:80", malformed, []string{"6.6.6.6", "203.0.113.7"}},
		"connection without address": {"@", malformed, []string{"203.0.113.7"}},
	} {
		t.Run(name, func(t *testing.T) { assertClient(t, row.want, from(row.peer, field, row.lines...), key) })
	}
}

func TestAFieldOfOneAddressRefusesOptionsThatCannotBeMeant(t *testing.T) {
	some := prefixes(t, "10.0.0.0/8")
	for want, opts := range map[string]clientaddr.Options{
		"ClientIPOptions.Header is not the name of a header field":                 {Header: "X Real IP", TrustedProxies: some},
		"ClientIPOptions.Header: X-Real-Ip needs TrustedProxies":                   {Header: "X-Real-IP"},
		"ClientIPOptions.TrustedProxies[0]: 0.0.0.0/0 trusts everybody":            {Header: "X-Real-IP", TrustedProxies: prefixes(t, "0.0.0.0/0")},
		"ClientIPOptions.TrustedHops: X-Real-Ip holds one address, so that no ent": {Header: "X-Real-IP", TrustedProxies: some, TrustedHops: 1},
	} {
		key, err := clientaddr.New(opts)
		assert.ErrorContains(t, err, want)
		assert.Nil(t, key)
	}
}
