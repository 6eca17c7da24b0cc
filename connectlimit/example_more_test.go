package connectlimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/connectlimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Only failed logins are charged. Health checks are not limited.
func ExampleChargeOnly() {
	perMethod := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	limit := ratelimit.Must(connectlimit.New(ratelimit.Map(perMethod, connectlimit.Procedure), &connectlimit.Options{
		Settle: connectlimit.ChargeOnly(connect.CodeUnauthenticated),
		Skip:   connectlimit.SkipServices("grpc.health.v1.Health"),
	}))
	var answer error
	login := limit.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { return nil, answer })
	for _, err := range []error{nil, connect.NewError(connect.CodeUnauthenticated, errors.New("wrong password")), nil} {
		answer = err
		_, err = login(context.Background(), procedure("/auth.v1.Auth/Login"))
		fmt.Println(err)
	}
	fmt.Println(limit.Stats().Allowed, "allowed,", limit.Stats().Denied, "denied")
	// Output:
	// <nil>
	// unauthenticated: wrong password
	// resource_exhausted: rate limit exceeded: default
	// 2 allowed, 1 denied
}

// Calls are not charged if they fail because of the server.
func ExampleRefundServerErrors() {
	perService := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	limit := ratelimit.Must(connectlimit.New(ratelimit.Map(perService, connectlimit.Service),
		&connectlimit.Options{Settle: connectlimit.RefundServerErrors}))
	failing := limit.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("no database"))
	})
	for range 3 {
		_, err := failing(context.Background(), procedure("/shop.v1.Orders/List"))
		fmt.Println(err)
	}
	// Output:
	// unavailable: no database
	// unavailable: no database
	// unavailable: no database
}

// At most 100 calls are served at once, and at most 10 for each address.
func ExampleNewInflight() {
	permits, err := inflight.New(10, &inflight.Options[netip.Addr]{Total: 100, MaxQueue: 5})
	if err != nil {
		fmt.Println(err)
		return
	}
	limit, err := connectlimit.NewInflight(permits, connectlimit.RemoteIP, &connectlimit.InflightOptions{MaxWait: time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := connect.NewUnaryHandler("/shop.v1.Orders/List", func(context.Context, *connect.Request[emptypb.Empty]) (*connect.Response[emptypb.Empty], error) {
		return connect.NewResponse(new(emptypb.Empty)), nil
	}, connect.WithInterceptors(limit))
	fmt.Println(call(handler))
	fmt.Println(limit.Stats().Allowed, "served")
	// Output:
	// <nil>
	// 1 served
}

// Key functions are tested without a server.
func ExampleNewCall() {
	type user struct{}
	ctx := context.WithValue(context.Background(), user{}, "ann") // set by an interceptor that authenticates the user
	header := http.Header{"X-Region": {"eu"}, "Authorization": {"Bearer s3cret"}, "X-Forwarded-For": {"203.0.113.7"}}
	c := connectlimit.NewCall(ctx, "/shop.v1.Orders/List", header, nil)
	c.Peer.Addr = "10.0.0.1:4711"

	byUser := func(c *connectlimit.Call) (string, error) {
		name, ok := c.Context().Value(user{}).(string)
		if !ok {
			return "", fmt.Errorf("%w: no user", keyfunc.ErrNoKey)
		}
		return name, nil
	}
	fmt.Println(byUser(c))
	fmt.Println(connectlimit.Header("X-Region")(c))
	token, err := keyfunc.BearerToken(connectlimit.Header("Authorization"))(c)
	fmt.Println(token == keyfunc.HashOf("s3cret"), err)
	clientIP, err := connectlimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(clientIP(c))
	// Output:
	// ann <nil>
	// eu <nil>
	// true <nil>
	// 203.0.113.7 <nil>
}

// procedure returns a request to a procedure.
func procedure(name string) connect.AnyRequest {
	return &toProcedure{connect.NewRequest(new(emptypb.Empty)), name}
}

type toProcedure struct {
	*connect.Request[emptypb.Empty]
	name string
}

func (r *toProcedure) Spec() connect.Spec { return connect.Spec{Procedure: r.name} }

// call calls a handler over HTTP.
func call(handler http.Handler) error {
	server := httptest.NewServer(handler)
	defer server.Close()
	_, err := connect.NewClient[emptypb.Empty, emptypb.Empty](server.Client(), server.URL+"/shop.v1.Orders/List").
		CallUnary(context.Background(), connect.NewRequest(new(emptypb.Empty)))
	return err
}
