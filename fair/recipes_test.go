package fair_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
)

// This file has the code for streams in docs/recipes.md, and simulates it.

// slowReader reads at the pace of a tenant's share of the bandwidth.
type slowReader struct {
	io.Reader
	ctx       context.Context
	bandwidth *fair.Limiter[string] // in bytes
	tenant    string
}

func (s slowReader) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p[:min(len(p), 16<<10)]) // at most the burst
	if n > 0 {
		if late := s.bandwidth.Wait(s.ctx, s.tenant, n); late != nil {
			return 0, late
		}
	}
	return n, err
}

// slowWriter writes at the pace of a tenant's share of the bandwidth.
type slowWriter struct {
	io.Writer
	ctx       context.Context
	bandwidth *fair.Limiter[string]
	tenant    string
}

func (s slowWriter) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), 16<<10)]
		if err := s.bandwidth.Wait(s.ctx, s.tenant, len(part)); err != nil {
			return written, err
		}
		n, err := s.Writer.Write(part)
		if written += n; err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}

func TestStreamsShareABandwidthByWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bandwidth := ratelimit.Must(fair.New(ratelimit.TokenBucket(ratelimit.PerSecond(1<<20), 64<<10), &fair.Options[string]{
			Weight: func(tenant string) int { return map[string]int{"paying": 3, "trial": 1}[tenant] },
		}))
		start := time.Now()
		var took [2]time.Duration
		var wg sync.WaitGroup
		wg.Go(func() {
			n, err := io.Copy(io.Discard, slowReader{strings.NewReader(strings.Repeat("x", 6<<20)), t.Context(), bandwidth, "paying"})
			assert.NoError(t, err)
			assert.EqualValues(t, 6<<20, n)
			took[0] = time.Since(start)
		})
		wg.Go(func() {
			n, err := io.Copy(slowWriter{io.Discard, t.Context(), bandwidth, "trial"}, strings.NewReader(strings.Repeat("x", 2<<20)))
			assert.NoError(t, err)
			assert.EqualValues(t, 2<<20, n)
			took[1] = time.Since(start)
		})
		wg.Wait()
		for _, d := range took {
			assert.InDelta(t, 8, d.Seconds(), .4, "8 MiB at 1 MiB a second, 6 of them and 2 of them at the same time")
		}
	})
}
