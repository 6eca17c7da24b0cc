package policy_test

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
)

// spellings lists clients, each in the forms in which programs hold its address. The first form comes from HTTP requests.
var spellings = [][]string{
	{"192.0.2.7", "::ffff:192.0.2.7", "::ffff:c000:207", "192.0.2.7:4711", "[::ffff:192.0.2.7]:4711", "192.0.2.7/32", " 192.0.2.7", "64:ff9b::c000:207"},
	{"2001:db8::", "2001:db8::1", "2001:DB8:0:0::1", "2001:0db8:0000:0000:0000:0000:0000:0001", "[2001:db8::1]:4711", "[2001:db8::1]", "2001:db8::1%eth0", "2001:db8::ffff:0:0:9",
		"2001:db8::/64", "2001:db8::1/128", " 2001:db8::1"},
	{"2001:db8:0:1::", "2001:db8:0:1::1"},
	{"fe80::", "fe80::1%eth0", "fe80::2"},
	{"unknown"}, {"@"}, {"10.0.0.0/8"}, {"2001:db8::/32"}, {"300.1.1.1"},
}

// TestAnIPOfTheProgramIsCutAsARequestsIs checks that all spellings of a client spend
// one budget, wherever the attribute comes from. Other texts stay apart as they are.
func TestAnIPOfTheProgramIsCutAsARequestsIs(t *testing.T) {
	for _, key := range []string{"ip", "[ip, user]", "[user, ip]"} {
		p := inForceOf(t, "- {name: a, key: "+key+", limit: fixed-window 100/h}")
		for _, client := range spellings {
			for i, ip := range client {
				for j, r := range []policy.Request{
					policy.Attributes{"ip": ip, "user": "ann"},
					policy.HTTP(httptest.NewRequest("GET", "/", nil), policy.Attributes{"ip": ip, "user": "ann"}),
				} {
					d, err := p.Take(t.Context(), r, 1)
					require.NoError(t, err)
					assert.Equal(t, 100-2*i-j-1, d.Remaining, "%s by key %s", ip, key)
				}
			}
		}
	}
	p := inForceOf(t, "- {name: a, key: ip, limit: fixed-window 100/h}")
	for _, client := range spellings[:3] {
		r := httptest.NewRequest("GET", "/", nil)
		if r.RemoteAddr = client[len(client)/2]; r.RemoteAddr[0] != '[' {
			r.RemoteAddr = "[" + r.RemoteAddr + "]:80"
		}
		require.True(t, p.Allow(policy.HTTP(r, nil), 10))
		for _, ip := range client {
			d, err := p.Peek(t.Context(), policy.Subject{Rule: "a", Key: []string{ip}}, 1)
			require.NoError(t, err)
			assert.Equal(t, 90, d.Remaining, "an operator may write %s", ip)
		}
	}
}

// TestListsOfAddressesHoldForAnIPOfTheProgram uses lists for denials
// and for exemptions, by address and by network, alone and among many.
func TestListsOfAddressesHoldForAnIPOfTheProgram(t *testing.T) {
	for _, list := range []string{
		`["192.0.2.7", "2001:db8::"]`, `["192.0.2.0/24", "2001:db8::/64"]`, `["::ffff:192.0.2.7", "2001:DB8:0:0::/64"]`,
		`["192.0.2.7", "2001:db8::", 10.1.0.1, 10.1.0.2, 10.1.0.3, 10.1.0.4, 10.1.0.5, 10.1.0.6, 10.1.0.7, 10.1.0.8]`,
	} {
		many := ""
		for i := range 20 { // so that an index finds the rules
			many += fmt.Sprintf("\n- {name: r%d, match: {attributes: {ip: [10.2.0.%d]}}, limit: blocked}", i, i)
		}
		denies := inForceOf(t, "- {name: a, match: {attributes: {ip: "+list+"}}, limit: blocked}"+many)
		exempts := inForceOf(t, "- {name: a, match: {attributes: {ip: "+list+"}}, allow: true}\n- {name: b, limit: blocked}"+many)
		except := inForceOf(t, "- {name: a, match: {not: {ip: "+list+"}}, limit: blocked}"+many)
		for c, client := range spellings {
			for _, ip := range client {
				r := policy.Attributes{"ip": ip}
				assert.Equal(t, c > 1, denies.Allow(r, 1), "%q denied by %s", ip, list)
				assert.Equal(t, c <= 1, exempts.Allow(r, 1), "%q exempted by %s", ip, list)
				assert.Equal(t, c <= 1, except.Allow(r, 1), "%q excepted by %s", ip, list)
			}
		}
	}
}

// TestKeysOfNetworksTakeEachSpelling cuts addresses to the bits in the key's name. Any other text is the caller's error.
func TestKeysOfNetworksTakeEachSpelling(t *testing.T) {
	for key, same := range map[string][][]string{
		"ip/24":     {{"192.0.2.7", "192.0.2.99:80", "::ffff:192.0.2.1", "64:ff9b::c000:207"}, {"2001:db8::", "2001:db8::1", "[2001:db8::2]:80", "2001:DB8::3%eth0"}},
		"ip/32/56":  {{"192.0.2.7", "192.0.2.7:80", "::ffff:192.0.2.7"}, {"2001:db8::", "2001:db8:0:ff::1", "[2001:db8:0:1::2]:80"}},
		"ip/32/128": {{"2001:db8::1", "2001:DB8:0::1", "[2001:db8::1]:80"}, {"2001:db8::2"}},
	} {
		p := inForceOf(t, "- {name: a, key: "+key+", limit: fixed-window 100/h}")
		for _, client := range same {
			for i, ip := range client {
				d, err := p.Take(t.Context(), policy.Attributes{"ip": ip}, 1)
				require.NoError(t, err)
				assert.Equal(t, 99-i, d.Remaining, "%s by key %s", ip, key)
			}
		}
		_, err := p.Take(t.Context(), policy.Attributes{"ip": "unknown"}, 1)
		assert.ErrorContains(t, err, "not an IP address")
	}
}

// TestAnOverrideOfAnAddressIsForItsClient uses each spelling of an address.
func TestAnOverrideOfAnAddressIsForItsClient(t *testing.T) {
	for _, client := range spellings[:2] {
		for _, written := range client {
			p := inForceOf(t, fmt.Sprintf("- {name: a, key: ip, limit: fixed-window 100/h, overrides: [{key: %q, limit: blocked}]}", written))
			for _, ip := range client {
				assert.False(t, p.Allow(policy.Attributes{"ip": ip}, 1), "%s, written as %s", ip, written)
			}
			assert.True(t, p.Allow(policy.Attributes{"ip": "198.51.100.1"}, 1))
		}
	}
}
