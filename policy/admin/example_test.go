package admin_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
)

// The page also answers programs, in JSON. Put it behind your authentication.
func ExampleNew() {
	set, err := policy.Parse([]byte("rules: [{name: api, key: user, limit: fixed-window 2/h}]"))
	if err != nil {
		log.Fatal(err)
	}
	policies, err := policy.New(set, nil)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/limits", admin.New(policies, &admin.Options{Write: true, ShowKeys: true}))

	for range 3 {
		policies.Allow(policy.Attributes{"user": "ann"}, 1)
	}
	r := httptest.NewRequest(http.MethodPost, "/limits", strings.NewReader("do=reset&rule=api&key=ann"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	fmt.Println(w.Code, policies.Allow(policy.Attributes{"user": "ann"}, 1))
	// Output: 200 true
}

// An operator takes the primary out of service by hand, for example before its server is upgraded.
func ExampleFailover() {
	set, err := policy.Parse([]byte("rules: [{name: api, key: user, limit: fixed-window 2/h}]"))
	if err != nil {
		log.Fatal(err)
	}
	shared, err := policy.New(set, nil) // in a service, on Redis, by module policyredis
	if err != nil {
		log.Fatal(err)
	}
	local, err := policy.New(set, nil)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := failover.New[policy.Request](shared, local, nil)
	if err != nil {
		log.Fatal(err)
	}
	page := admin.New(shared, &admin.Options{Write: true, Failovers: map[string]admin.Failover{"api": limiter}})

	r := httptest.NewRequest(http.MethodPost, "/limits", strings.NewReader("do=force&failover=api&state=open"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	page.ServeHTTP(w, r)
	fmt.Println(w.Code, limiter.Stats().State)
	// Output: 200 open
}
