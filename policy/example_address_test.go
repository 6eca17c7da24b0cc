package policy_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/policy"
)

// A proxy writes the client's address into a header field. The program chooses the address that counts.
func ExampleHTTP_behindAProxy() {
	set, err := policy.Parse([]byte("rules:\n- {name: api, key: ip, limit: fixed-window 1/h}"))
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.New(set, nil)
	if err != nil {
		log.Fatal(err)
	}
	proxies := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}

	// proxies are your proxies' networks
	client, err := httplimit.ClientIP(httplimit.ClientIPOptions{Header: "CF-Connecting-IP", TrustedProxies: proxies})
	if err != nil {
		log.Fatal(err)
	}
	limit, err := httplimit.New(ratelimit.Map(policies, func(r *http.Request) (policy.Request, error) {
		ip, err := client(r)
		return policy.HTTP(r, policy.Attributes{"ip": ip.String()}), err
	}), nil)
	if err != nil {
		log.Fatal(err)
	}
	handler := limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, address := range []string{"2001:db8::1", "2001:db8::2", "198.51.100.7"} {
		r := httptest.NewRequest("GET", "/", nil) // the request's peer is 192.0.2.1
		r.Header.Set("CF-Connecting-IP", address)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(address, w.Code)
	}
	// Output:
	// 2001:db8::1 200
	// 2001:db8::2 429
	// 198.51.100.7 200
}
