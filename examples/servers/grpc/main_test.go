package main

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// hourly has rules whose budgets regain nothing during a test.
const hourly = `
rules:
  - {name: user, key: [user], limit: fixed-window 3/h}
  - {name: watches, match: {route: ["/grpc.health.v1.Health/Watch"]}, key: [user], limit: fixed-window 1/h}
`

// clients has a running server's clients.
type clients struct {
	web    string
	health healthpb.HealthClient
}

func start(t *testing.T) clients {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	addresses, done := make(chan [2]string, 1), make(chan error, 1)
	go func() {
		done <- run(ctx, []byte(hourly), "127.0.0.1:0", "127.0.0.1:0", func(web, rpc string) { addresses <- [2]string{web, rpc} })
	}()
	t.Cleanup(func() { cancel(); assert.NoError(t, <-done) })
	at := <-addresses
	conn, err := grpc.NewClient(at[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	return clients{"http://" + at[0], healthpb.NewHealthClient(conn)}
}

func (c clients) get(t *testing.T, user string) int {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, c.web, nil)
	require.NoError(t, err)
	if user != "" {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

func as(user string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+user)
}

func (c clients) check(ctx context.Context) codes.Code {
	_, err := c.health.Check(ctx, &healthpb.HealthCheckRequest{})
	return status.Code(err)
}

func TestHTTPAndGRPCSpendOneBudget(t *testing.T) {
	c := start(t)
	assert.Equal(t, http.StatusOK, c.get(t, "ann"))
	assert.Equal(t, codes.OK, c.check(as("ann")))
	assert.Equal(t, http.StatusOK, c.get(t, "ann"))
	assert.Equal(t, codes.ResourceExhausted, c.check(as("ann")))
	assert.Equal(t, http.StatusTooManyRequests, c.get(t, "ann"))
	assert.Equal(t, http.StatusOK, c.get(t, "bob"), "another user has a budget of his own")
	assert.Equal(t, codes.OK, c.check(as("bob")))
}

func TestARuleForOneMethod(t *testing.T) {
	c := start(t)
	for _, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		watch, err := c.health.Watch(as("cid"), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		_, err = watch.Recv()
		assert.Equal(t, want, status.Code(err))
	}
}

func TestWithoutATokenThereIsNoKey(t *testing.T) {
	c := start(t)
	assert.Equal(t, http.StatusBadRequest, c.get(t, ""))
	assert.Equal(t, codes.InvalidArgument, c.check(context.Background()))
}

func TestTheExampleCallsItself(t *testing.T) {
	var out strings.Builder
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, run(ctx, []byte(hourly), "127.0.0.1:0", "127.0.0.1:0", func(web, rpc string) {
		go func() { done <- show(ctx, &out, web, rpc); cancel() }()
	}))
	require.NoError(t, <-done)
	assert.Regexp(t, `^HTTP: 200 OK
gRPC: OK
HTTP: 200 OK
gRPC: ResourceExhausted, retry after .+
$`, out.String())
}

func TestTheRulesOfTheExampleAreValid(t *testing.T) {
	_, _, err := limits(rules)
	assert.NoError(t, err)
}
