package connectlimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/connectlimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Each API key may make two calls an hour. The client may use any of the protocols.
func Example() {
	keys, err := ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("per-key"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	limit, err := connectlimit.New(ratelimit.Map(keys, keyfunc.APIKey(connectlimit.Header("X-Api-Key"))), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/greet.v1.Greeter/Greet", connect.NewUnaryHandler("/greet.v1.Greeter/Greet",
		func(_ context.Context, r *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
			return connect.NewResponse(wrapperspb.String("hello " + r.Msg.Value)), nil
		}, connect.WithInterceptors(limit)))
	server := httptest.NewServer(mux)
	defer server.Close()

	client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](server.Client(), server.URL+"/greet.v1.Greeter/Greet")
	for range 3 {
		request := connect.NewRequest(wrapperspb.String("ann"))
		request.Header().Set("X-Api-Key", "secret")
		response, err := client.CallUnary(context.Background(), request)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(response.Msg.Value)
	}
	// Output:
	// hello ann
	// hello ann
	// resource_exhausted: rate limit exceeded: per-key
}
