package edge

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func TestShareIsWithinTheSpan(t *testing.T) {
	s := newJitterSeed()
	for _, span := range []time.Duration{1, 2, 3, time.Second, math.MaxInt64} {
		for i := range 200 {
			share := s.share(fmt.Sprint(i), noon, time.Minute, span)
			assert.GreaterOrEqual(t, share, time.Duration(0))
			assert.Less(t, share, span)
		}
	}
	for _, none := range []time.Duration{0, -1, math.MinInt64} {
		assert.Zero(t, s.share("client", noon, time.Minute, none))
	}
}

// Each tenth of the span gets about a tenth of the clients, up to 6 standard deviations more or less.
func TestSharesAreSpreadEvenly(t *testing.T) {
	const clients = 20_000
	s := newJitterSeed()
	var parts [10]int
	for i := range clients {
		parts[s.share(fmt.Sprint(i), noon, time.Minute, 10)]++
	}
	for _, n := range parts {
		assert.InDelta(t, clients/10, n, 6*math.Sqrt(clients*0.1*0.9))
	}
}

// A client's wait ends at the same instant, however often the client tries again. So its share stays the same, too.
func TestShareStaysTheSameWhileTheClientWaits(t *testing.T) {
	s := newJitterSeed()
	begin := s.share("client", noon, 5*time.Minute, time.Hour)
	for waited := range 5 {
		at := time.Duration(waited) * time.Minute
		assert.Equal(t, begin, s.share("client", noon.Add(at), 5*time.Minute-at, time.Hour))
	}
}

func TestShareChangesEveryTenMinutesAndWithTheClientAndTheSeed(t *testing.T) {
	s := newJitterSeed()
	share := func(s jitterSeed, client string, at time.Duration) time.Duration {
		return s.share(client, noon.Add(at), 0, math.MaxInt64)
	}
	one := share(s, "client", 0)
	assert.Equal(t, one, share(s, "client", 10*time.Minute-1))
	assert.NotEqual(t, one, share(s, "client", 10*time.Minute))
	assert.NotEqual(t, one, share(s, "clienu", 0))
	assert.NotEqual(t, one, share(newJitterSeed(), "client", 0))
}
