package inflight

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/chart"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

var (
	picture = flag.String("picture", "", "write a picture of the real runs to this file")
	second  = flag.Duration("second", time.Second, "the length of a second of the real runs")
)

// A run takes 24 seconds. From second 6 to second 18, half the replicas are dead, or one client sets deadlines of 5 ms.
const (
	runTime, fails, healed = 24, 6, 18

	servers, work = 4, 20 * time.Millisecond // 200 requests a second
)

// heeding is the algorithm with another rule, for comparison. If a quarter of a window is dropped, it lowers
// the limit, whether that helps or not. A window with an unknown share of drops counts as such a window.
type heeding struct{ inflight.Algorithm }

func (h heeding) Update(s inflight.Sample) int {
	s.Drops = 0
	return h.Algorithm.Update(s)
}

// adaptive returns a run's limit.
func adaptive(t *testing.T, old bool) *inflight.Limiter[string] {
	learn := inflight.Learn(nil)
	l, err := inflight.New(200, &inflight.Options[string]{Adaptive: func() inflight.Algorithm {
		if old {
			return heeding{learn()}
		}
		return learn()
	}})
	require.NoError(t, err)
	return l
}

// line has a run's goodput, in requests a second.
type line [runTime]float64

// during returns the mean goodput during the incident, without its first seconds.
func (l line) during() (mean float64) {
	for _, x := range l[fails+4 : healed] {
		mean += x / (healed - fails - 4)
	}
	return mean
}

// drive sends requests at random during a run, and counts the successes per second.
func drive(begin time.Time, rate func(second int) float64, send func() bool) (l line) {
	var good [runTime]atomic.Int64
	var wg sync.WaitGroup
	for at := begin; ; {
		elapsed := int(at.Sub(begin) / *second)
		if elapsed >= runTime {
			break
		}
		r := rate(elapsed)
		if r == 0 {
			at = at.Add(*second / 10)
			continue
		}
		at = at.Add(time.Duration(rand.ExpFloat64() / r * float64(time.Second)))
		time.Sleep(time.Until(at))
		wg.Go(func() {
			if send() {
				if i := int(time.Since(begin) / *second); i < runTime {
					good[i].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for i := range good {
		l[i] = float64(good[i].Load()) / second.Seconds()
	}
	return l
}

func steadily(rate float64) func(int) float64 { return func(int) float64 { return rate } }

func inIncident(rate float64) func(int) float64 {
	return func(second int) float64 {
		if second >= fails && second < healed {
			return rate
		}
		return 0
	}
}

// busy is a backend that works on several requests at once.
type busy chan struct{}

func (b busy) serve(ctx context.Context) error {
	select {
	case b <- struct{}{}:
		defer func() { <-b }()
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-time.After(work):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deadReplica runs an HTTP server. Its proxy sends half the requests to each of two
// replicas. From second 6 to second 18 one of them is dead, and the answer is 503 at once.
func deadReplica(t *testing.T, old bool) line {
	begin := time.Now()
	replicas := make([]*httputil.ReverseProxy, 2)
	for i := range replicas {
		backend := make(busy, servers/2)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			now := int(time.Since(begin) / *second)
			if i == 1 && now >= fails && now < healed {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if backend.serve(r.Context()) != nil {
				w.WriteHeader(http.StatusGatewayTimeout)
			}
		}))
		t.Cleanup(server.Close)
		replicas[i] = httputil.NewSingleHostReverseProxy(ratelimit.Must(url.Parse(server.URL)))
		transport := &http.Transport{MaxIdleConnsPerHost: 200}
		t.Cleanup(transport.CloseIdleConnections)
		replicas[i].Transport = transport
	}
	limit, err := httplimit.NewInflight(adaptive(t, old), func(*http.Request) (string, error) { return "backend", nil }, nil)
	require.NoError(t, err)
	proxy := httptest.NewServer(limit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		replicas[rand.IntN(2)].ServeHTTP(w, r)
	})))
	t.Cleanup(proxy.Close)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}
	t.Cleanup(client.CloseIdleConnections)
	return drive(begin, steadily(240), func() bool {
		resp, err := client.Get(proxy.URL)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// hostile runs a gRPC server with honest clients. From second 6 to second 18, another client sets deadlines of 5 ms.
func hostile(t *testing.T, old bool) line {
	limit, err := grpclimit.NewInflight(adaptive(t, old), func(*grpclimit.Call) (string, error) { return "server", nil },
		&grpclimit.InflightOptions{Outcome: func(c *grpclimit.Call, code codes.Code, usual inflight.Outcome) inflight.Outcome {
			if old && c.Context().Err() == context.DeadlineExceeded {
				return inflight.Dropped
			}
			return usual
		}})
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(limit.UnaryServerInterceptor()))
	grpc_testing.RegisterTestServiceServer(server, &working{backend: make(busy, servers)})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client := func() grpc_testing.TestServiceClient {
		conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return grpc_testing.NewTestServiceClient(conn)
	}
	call := func(c grpc_testing.TestServiceClient, deadline time.Duration) func() bool {
		return func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), deadline)
			defer cancel()
			_, err := c.UnaryCall(ctx, &grpc_testing.SimpleRequest{})
			return err == nil
		}
	}
	begin := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() { drive(begin, inIncident(400), call(client(), 5*time.Millisecond)) })
	l := drive(begin, steadily(140), call(client(), 2*time.Second))
	wg.Wait()
	return l
}

// working is a gRPC service doing a backend's work.
type working struct {
	grpc_testing.UnimplementedTestServiceServer
	backend busy
}

func (w *working) UnaryCall(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	if err := w.backend.serve(ctx); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return &grpc_testing.SimpleResponse{}, nil
}

// On real servers in real time, a dead replica leaves the other
// one's capacity, and a hostile client does not affect honest ones.
func TestRealServersKeepTheirGoodput(t *testing.T) {
	testsize.Alone(t)
	if !testsize.Long() && *picture == "" {
		t.Skip("it takes 48 seconds: a limit needs some seconds to learn what is usual, and to try a lower limit")
	}
	if testsize.Race {
		t.Skip("the race detector takes the time that this test measures")
	}
	type run struct {
		name     string
		play     func(*testing.T, bool) line
		old, now line
	}
	runs := []*run{
		{name: "HTTP: half of the replicas are dead, and answer with 503", play: deadReplica},
		{name: "gRPC: another client sends 400 calls a second with deadlines of 5 ms", play: hostile},
	}
	for _, r := range runs {
		var wg sync.WaitGroup
		wg.Go(func() { r.old = r.play(t, true) })
		wg.Go(func() { r.now = r.play(t, false) })
		wg.Wait()
		t.Logf("%s: goodput %.0f a second with the former rule, %.0f now", r.name, r.old.during(), r.now.during())
		assert.Greater(t, r.now.during(), 1.5*r.old.during(), r.name)
	}
	if *picture == "" {
		return
	}
	const width, left, right, plot = 920, 64.0, 892.0, 150.0
	c := chart.New(width, 96+2*220, "Goodput of real servers during two incidents", "Before and after the rule of experiments: answers per second over time.")
	c.Text("heading", "start", left, 34, "Goodput during a partial outage, and beside a hostile client")
	c.Text("muted", "start", left, 55, "Real servers on one machine. The incidents last from second 6 to 18.")
	for i, name := range []string{"each window of drops lowers the limit", "drops that no lower limit cures do not"} {
		c.Rect([]string{"b", "a"}[i], left+280*float64(i), 68, 10, 10)
		c.Text("small", "start", left+280*float64(i)+15, 77.5, name)
	}
	seconds := chart.Linear(0, runTime, left, right)
	for i, r := range runs {
		y := 96 + 220*float64(i)
		most := max(slices.Max(r.old[:]), slices.Max(r.now[:]), 200)
		at := chart.Linear(0, most, y+30+plot, y+30)
		c.Text("name", "start", left, y+20, r.name)
		for v := 0.0; v <= most; v += 50 {
			c.Line("grid", left, at(v), right, at(v))
			c.Text("small", "end", left-8, at(v)+4, fmt.Sprint(v))
		}
		for s := 0.0; s <= runTime; s += 6 {
			c.Text("small", "middle", seconds(s), at(0)+18, fmt.Sprint(s))
		}
		for _, s := range []float64{fails, healed} {
			c.Line("window", seconds(s), at(most), seconds(s), at(0))
		}
		c.Line("axis", left, at(0), right, at(0))
		for class, l := range map[string]line{"b": r.old, "a": r.now} {
			var points []chart.Point
			for s, x := range l {
				points = append(points, chart.Point{X: seconds(float64(s) + 0.5), Y: at(x)})
			}
			c.Trace(class, points)
		}
	}
	c.Text("small", "middle", (left+right)/2, 96+2*220-6, "time, in seconds")
	require.NoError(t, os.WriteFile(*picture, []byte(c.String()), 0o644))
}
