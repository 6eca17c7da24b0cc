package grpclimit_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/inflight"
)

// Each client of a load balancer watches the health of each server, for as long as it lives.
func TestStreamsOfHealthAndReflectionTakeNoPermits(t *testing.T) {
	for name, skip := range map[string]func(*grpclimit.Call) bool{
		"by default":               nil,
		"with a Skip of one's own": func(*grpclimit.Call) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			l := ratelimit.Must(inflight.New(10, &inflight.Options[string]{Total: 10}))
			i, err := grpclimit.NewInflight(l, everyone, &grpclimit.InflightOptions{Skip: skip})
			require.NoError(t, err)
			server := grpc.NewServer(grpc.ChainUnaryInterceptor(i.UnaryServerInterceptor()), grpc.ChainStreamInterceptor(i.StreamServerInterceptor()))
			testgrpc.RegisterTestServiceServer(server, &service{})
			healthpb.RegisterHealthServer(server, health.NewServer())
			reflection.Register(server)
			addr := start(t, server)
			opened := 0
			for range 8 {
				conn := dial(t, addr)
				watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
				require.NoError(t, err)
				if _, err = watch.Recv(); err == nil {
					opened++
				}
				stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
				require.NoError(t, err)
				request := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
				_ = stream.Send(request) // its error is that of Recv
				if _, err = stream.Recv(); err == nil {
					opened++
				}
			}
			got := call(t.Context(), testgrpc.NewTestServiceClient(dial(t, addr))).code
			if skip == nil {
				assert.Equal(t, 16, opened)
				assert.Equal(t, codes.OK, got)
				assert.EqualValues(t, 16, i.Stats().Skipped)
			} else {
				assert.Equal(t, 10, opened)
				assert.Equal(t, codes.Unavailable, got)
			}
		})
	}
}

func TestPerIPBehindAProxyIsWarnedOfOnce(t *testing.T) {
	for peer, want := range map[string]int{"10.0.0.1:1": 1, "127.0.0.1:1": 1, "192.0.2.1:1": 0} {
		var log bytes.Buffer
		i, err := grpclimit.PerIP(window(100), &grpclimit.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		for range 3 {
			_, err = i.UnaryServerInterceptor()(incoming(tcp(peer), "x-forwarded-for", "198.51.100.7"), nil, info, answering(nil))
			require.NoError(t, err)
		}
		assert.Equal(t, want, strings.Count(log.String(), `level=WARN msg="grpclimit: PerIP gives one budget to all clients of a proxy: use New with ClientIP" field=X-Forwarded-For`), peer)
		assert.NotContains(t, log.String(), "198.51")
	}
}
