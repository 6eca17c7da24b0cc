package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

// backend is a RoundTripper that records each request's time and returns the prepared responses.
type backend struct {
	mu     sync.Mutex
	begin  time.Time
	sent   []sent
	bodies []string
	answer func(n int, r *http.Request) (status int, header http.Header) // n counts from 1; if nil, the status is 200
}

type sent struct {
	path string
	at   time.Duration
}

func newBackend(answer func(n int, r *http.Request) (int, http.Header)) *backend {
	return &backend{begin: time.Now(), answer: answer}
}

func (b *backend) RoundTrip(r *http.Request) (*http.Response, error) {
	text := ""
	if r.Body != nil {
		read, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		text = string(read)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, sent{r.URL.Path, time.Since(b.begin)})
	b.bodies = append(b.bodies, text)
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("answer")), Request: r}
	if b.answer != nil {
		if resp.StatusCode, resp.Header = b.answer(len(b.sent), r); resp.Header == nil {
			resp.Header = http.Header{}
		}
	}
	return resp, nil
}

// times returns when the requests were sent.
func (b *backend) times() (at []time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sent {
		at = append(at, s.at)
	}
	return at
}

func reserver(t testing.TB, limit ratelimit.Limit) ratelimit.Reserver[*http.Request] {
	t.Helper()
	return ratelimit.Map(ratelimit.Must(ratelimit.New[string](limit, nil)), httplimit.TargetHost)
}

func client(t testing.TB, base http.RoundTripper, l ratelimit.Reserver[*http.Request], opts httplimit.TransportOptions) (*http.Client, *httplimit.Transport) {
	t.Helper()
	if opts.MaxWait == 0 {
		opts.MaxWait = -1 // these tests wait for as long as the server demands
	}
	transport := ratelimit.Must(httplimit.NewTransport(base, l, &opts))
	return &http.Client{Transport: transport}, transport
}

// fields returns a header with these lines, each "Name: value".
func fields(lines ...string) http.Header { return with(lines...).Header }

// once answers the first request with this status and header, and others with 200.
func once(status int, header http.Header) func(int, *http.Request) (int, http.Header) {
	return func(n int, _ *http.Request) (int, http.Header) {
		if n == 1 {
			return status, header
		}
		return http.StatusOK, nil
	}
}

func fetch(t testing.TB, c *http.Client, url string) int {
	resp, err := c.Get(url)
	if !assert.NoError(t, err) {
		return 0
	}
	body(t, resp)
	return resp.StatusCode
}

// Options, deadlines and the server's answers decide when a request is sent. Package pace tests the queue itself.
func TestATransportQueuesItsRequests(t *testing.T) {
	perMinute6, unlimited := ratelimit.TokenBucket(ratelimit.PerMinute(6), 1), ratelimit.Unlimited()
	for name, row := range map[string]struct {
		limit   ratelimit.Limit
		fields  http.Header // the first response's header
		opts    httplimit.TransportOptions
		timeout time.Duration
		want    time.Duration // when the second request is sent
		err     error         // or why it fails at once
	}{
		"its own limit":         {perMinute6, nil, httplimit.TransportOptions{}, 0, 10 * time.Second, nil},
		"Cost":                  {perMinute6, nil, httplimit.TransportOptions{Cost: func(*http.Request) int { return 0 }}, 0, 0, nil},
		"Retry-After":           {unlimited, fields("Retry-After: 10"), httplimit.TransportOptions{}, 0, 10 * time.Second, nil},
		"nothing left":          {unlimited, fields(`RateLimit: "a";r=5;t=20, "b";r=0;t=10`), httplimit.TransportOptions{}, 0, 10 * time.Second, nil},
		"time enough":           {perMinute6, nil, httplimit.TransportOptions{}, 11 * time.Second, 10 * time.Second, nil},
		"too little time":       {perMinute6, nil, httplimit.TransportOptions{}, 9 * time.Second, 0, context.DeadlineExceeded},
		"a minute by default":   {unlimited, fields("Retry-After: 60"), httplimit.TransportOptions{}, 0, time.Minute, nil},
		"more than a minute":    {unlimited, fields("Retry-After: 61"), httplimit.TransportOptions{}, 0, 0, ratelimit.ErrLimited},
		"MaxWait":               {perMinute6, nil, httplimit.TransportOptions{MaxWait: 9 * time.Second}, 0, 0, ratelimit.ErrLimited},
		"no MaxWait":            {unlimited, fields("Retry-After: 277200"), httplimit.TransportOptions{MaxWait: -1}, 0, 77 * time.Hour, nil},
		"MaxServerWait":         {unlimited, fields("Retry-After: 3155760000"), httplimit.TransportOptions{MaxServerWait: time.Minute}, 0, time.Minute, nil},
		"MaxServerWait, a date": {unlimited, fields("Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"), httplimit.TransportOptions{MaxServerWait: time.Minute}, 0, time.Minute, nil},
		"a blocked key":         {ratelimit.Blocked(), nil, httplimit.TransportOptions{}, 0, 0, ratelimit.ErrExceedsLimit},
	} {
		bubble(t, name, func(t *testing.T) {
			status := 200
			if row.fields.Get("Retry-After") != "" {
				status = 429
			}
			b := newBackend(once(status, row.fields))
			transport := ratelimit.Must(httplimit.NewTransport(b, reserver(t, row.limit), &row.opts))
			if row.limit != ratelimit.Blocked() {
				fetch(t, &http.Client{Transport: transport}, "http://a/")
			}
			text := &closing{Reader: strings.NewReader("x")}
			resp, err := (&http.Client{Transport: transport, Timeout: row.timeout}).Post("http://a/", "", text)
			if row.err == nil {
				require.NoError(t, err)
				body(t, resp)
				assert.Equal(t, []time.Duration{0, row.want}, b.times())
				return
			}
			assert.ErrorIs(t, err, row.err)
			assert.Zero(t, time.Since(b.begin))
			assert.True(t, text.closed)
			assert.Equal(t, uint64(1), transport.Stats().Failed)
		})
	}
}

// An http.RoundTripper must close the body, even if it does not send the request.
func TestABodyIsClosedIfItsRequestIsNotSent(t *testing.T) {
	full := ratelimit.Must(inflight.New[string](1, nil))
	_ = ratelimit.Must(full.TryAcquire("http://a", 1))
	keyless := func(*http.Request) (string, error) { return "", keyfunc.ErrNoKey }
	for name, row := range map[string]struct {
		l    ratelimit.Reserver[*http.Request]
		opts httplimit.TransportOptions
		want error
	}{
		"no key for the limiter": {reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{Key: keyless}, keyfunc.ErrNoKey},
		"no key for a permit":    {nil, httplimit.TransportOptions{Key: keyless, Inflight: full}, keyfunc.ErrNoKey},
		"no permit":              {nil, httplimit.TransportOptions{MaxWait: time.Nanosecond, Inflight: full}, ratelimit.ErrLimited},
	} {
		text := &closing{Reader: strings.NewReader("x")}
		_, err := ratelimit.Must(httplimit.NewTransport(newBackend(nil), row.l, &row.opts)).RoundTrip(ratelimit.Must(http.NewRequest("POST", "http://a/", text)))
		require.ErrorIs(t, err, row.want, name)
		assert.True(t, text.closed, name)
	}
}

func TestARefusedRequestCostsNothing(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerHour(1), 5), &ratelimit.Options[string]{Clock: new(fakeClock)}))
	transport := ratelimit.Must(httplimit.NewTransport(newBackend(once(429, nil)), ratelimit.Map(l, everyone), nil))
	_, err := transport.RoundTrip(httptest.NewRequest("GET", "http://a/", nil))
	require.NoError(t, err)
	d, err := l.Peek(t.Context(), "everyone", 1)
	require.NoError(t, err)
	assert.Equal(t, 5, d.Remaining)
}

// The second connection error in a row makes later requests wait. A deadline of the caller's own is no such error.
func TestDeadlinesOfTheCallerAreNoConnectionErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/slow" {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		transport := ratelimit.Must(httplimit.NewTransport(slow, reserver(t, ratelimit.Unlimited()), nil))
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := transport.RoundTrip(httptest.NewRequest("GET", "http://a/slow", nil).WithContext(ctx))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		begin := time.Now()
		_, err := transport.RoundTrip(httptest.NewRequest("GET", "http://a/", nil))
		require.NoError(t, err)
		assert.Zero(t, time.Since(begin))
	})
}

// closing is a body that records its Close.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// The rows are responses, and the time when the next request is sent. The server's clock is 25 years ahead.
func TestTransportLearnsFromEachDialect(t *testing.T) {
	const date = "Date: Fri, 01 Aug 2025 12:00:00 GMT" // Unix 1754049600
	for name, row := range map[string]struct {
		status int
		lines  []string
		want   time.Duration
	}{
		"Retry-After in seconds":           {429, []string{"Retry-After: 7"}, 7 * time.Second},
		"Retry-After of a 503":             {503, []string{"Retry-After: 7"}, 7 * time.Second},
		"Retry-After of another status":    {200, []string{"Retry-After: 7"}, 0},
		"Retry-After as a date":            {429, []string{date, "Retry-After: Fri, 01 Aug 2025 12:00:08 GMT"}, 8 * time.Second},
		"Retry-After as a date of RFC 850": {503, []string{date, "Retry-After: Friday, 01-Aug-25 12:00:08 GMT"}, 8 * time.Second},
		// the bubble's clock
		"date without the server's own":                     {429, []string{"Retry-After: Sat, 01 Jan 2000 00:00:09 GMT"}, 9 * time.Second},
		"date that is past":                                 {503, []string{date, "Retry-After: Fri, 01 Aug 2025 11:00:00 GMT"}, 0},
		"Retry-After with a fraction":                       {429, []string{"Retry-After: 1.5"}, 1500 * time.Millisecond},
		"Retry-After that is no number":                     {429, []string{"Retry-After: Infinity"}, time.Second},
		"Retry-After NaN":                                   {429, []string{"Retry-After: NaN"}, time.Second},
		"Retry-After with an exponent":                      {429, []string{"Retry-After: 1e1"}, time.Second},
		"Retry-After in hex":                                {503, []string{"Retry-After: 0x10p0"}, 0},
		"Retry-After with underscores":                      {503, []string{"Retry-After: 1_0"}, 0},
		"Retry-After with a sign":                           {503, []string{"Retry-After: +7"}, 0},
		"Retry-After that is two":                           {503, []string{"Retry-After: 7, 8"}, 8 * time.Second},
		"Retry-After that is twice the same":                {429, []string{"Retry-After: 30, 30"}, 30 * time.Second},
		"Retry-After in two lines":                          {429, []string{"Retry-After: 9", "Retry-After: 3"}, 9 * time.Second},
		"Retry-After that is two dates":                     {429, []string{date, "Retry-After: Fri, 01 Aug 2025 12:00:08 GMT, Fri, 01 Aug 2025 12:00:06 GMT"}, 8 * time.Second},
		"Retry-After beside what cannot be read":            {429, []string{"Retry-After: soon, 5"}, 5 * time.Second},
		"Retry-After with a unit":                           {429, []string{"Retry-After: 30s"}, 30 * time.Second},
		"Retry-After with two units":                        {429, []string{"Retry-After: 1m30s"}, 90 * time.Second},
		"Retry-After below zero, with a unit":               {503, []string{"Retry-After: -30s"}, 0},
		"Retry-After in Unix seconds":                       {429, []string{date, "Retry-After: 1754049610"}, 10 * time.Second},
		"Retry-After in Unix milliseconds":                  {429, []string{date, "Retry-After: 1754049610500"}, 10500 * time.Millisecond},
		"Retry-After in Unix microseconds":                  {429, []string{date, "Retry-After: 1754049610500000"}, 10500 * time.Millisecond},
		"Retry-After in Unix nanoseconds":                   {429, []string{date, "Retry-After: 1754049610500000000"}, 10500 * time.Millisecond},
		"Retry-After in Unix seconds that are past":         {429, []string{date, "Retry-After: 1754049600"}, 0},
		"Retry-After-Ms in Unix milliseconds":               {429, []string{date, "Retry-After-Ms: 1754049610500"}, 10500 * time.Millisecond},
		"Retry-After as a date in the zone UTC":             {429, []string{date, "Retry-After: Fri, 01 Aug 2025 12:00:08 UTC"}, 8 * time.Second},
		"Retry-After as a date of RFC 850 in the zone UTC":  {429, []string{date, "Retry-After: Friday, 01-Aug-25 12:00:08 UTC"}, 8 * time.Second},
		"Retry-After as a date with an offset":              {429, []string{date, "Retry-After: Fri, 01 Aug 2025 14:00:08 +0200"}, 8 * time.Second},
		"Retry-After as a date with an offset of zero":      {503, []string{date, "Retry-After: Fri, 01 Aug 2025 12:00:08 +0000"}, 8 * time.Second},
		"Retry-After as a date with a day of one digit":     {429, []string{date, "Retry-After: Fri, 1 Aug 2025 12:00:08 GMT"}, 8 * time.Second},
		"Retry-After as a date in a zone of unknown offset": {503, []string{date, "Retry-After: Fri, 01 Aug 2025 12:00:08 EST"}, 0},
		"Retry-After as a date of RFC 3339":                 {429, []string{date, "Retry-After: 2025-08-01T12:00:08Z"}, 8 * time.Second},
		"Retry-After as a date of RFC 3339 with an offset":  {429, []string{date, "Retry-After: 2025-08-01T14:00:08.5+02:00"}, 8500 * time.Millisecond},
		"Date in the zone UTC":                              {429, []string{"Date: Fri, 01 Aug 2025 12:00:00 UTC", "Retry-After: 1754049610"}, 10 * time.Second},
		"Retry-After of 0 beside a window":                  {429, []string{"Retry-After: 0", `RateLimit: "a";r=0;t=5`}, 0},
		"two budgets of one name, the stricter first":       {200, []string{`RateLimit: "a";r=0;t=5, "a";r=9;t=5`}, 5 * time.Second},
		"two budgets of one name, the stricter last":        {200, []string{`RateLimit: "a";r=9;t=5, "A";r=0;t=5`}, 5 * time.Second},
		"two budgets of one name, of one window each":       {200, []string{`RateLimit: "a";r=0;t=60, "a";r=0;t=5`}, 60 * time.Second},
		"two budgets of one name, in two lines":             {200, []string{`RateLimit: "a";r=0;t=60`, `RateLimit: "a";r=0;t=5`}, 60 * time.Second},
		"two policies of one name":                          {200, []string{`RateLimit-Policy: "a";q=10;w=1, "a";q=90;w=60`, `RateLimit: "a";r=0`}, 60 * time.Second},
		"X-RateLimit of nested limiters":                    {200, []string{"X-RateLimit-Remaining: 4", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1", "X-RateLimit-Reset: 5"}, 5 * time.Second},
		"X-RateLimit of nested limiters, joined":            {200, []string{"X-RateLimit-Remaining: 0, 4", "X-RateLimit-Reset: 5, 60"}, 5 * time.Second},
		"X-RateLimit of nested limiters, with one reset":    {200, []string{"X-RateLimit-Remaining: 4, 0", "X-RateLimit-Reset: 5"}, 5 * time.Second},
		"Retry-After of dots":                               {503, []string{"Retry-After: ."}, 0},
		"Retry-After of a cached answer":                    {503, []string{"Age: 4", "Retry-After: 7"}, 3 * time.Second},
		"Retry-After of a 429 from a cache":                 {429, []string{"Age: 4, 9", "Retry-After: 7"}, 3 * time.Second},
		"Retry-After of a cached answer that is over":       {503, []string{"Age: 120", "Retry-After: 7"}, 0},
		"Retry-After of a cached 429 that is over":          {429, []string{"Age: 7", "Retry-After: 7"}, 0},
		"Retry-After with an Age beyond all numbers":        {429, []string{"Age: 99999999999999999999", "Retry-After: 7"}, 0},
		"Retry-After with a malformed Age":                  {429, []string{"Age: soon", "Retry-After: 7"}, 7 * time.Second},
		"Retry-After as a date of a cached answer":          {503, []string{date, "Age: 4", "Retry-After: Fri, 01 Aug 2025 12:00:08 GMT"}, 4 * time.Second},
		"date of a cached answer without the server's own":  {429, []string{"Age: 4", "Retry-After: Sat, 01 Jan 2000 00:00:09 GMT"}, 9 * time.Second},
		"Retry-After-Ms of a cached answer":                 {429, []string{"Age: 2", "Retry-After-Ms: 2250"}, 250 * time.Millisecond},
		"Retry-After in Unix seconds of a cached answer":    {429, []string{date, "Age: 4", "Retry-After: 1754049610"}, 6 * time.Second},
		"Retry-After before t":                              {429, []string{"Retry-After: 7", `RateLimit: "a";r=0;t=3`}, 7 * time.Second},
		"Retry-After-Ms":                                    {429, []string{"Retry-After-Ms: 250", "Retry-After: 1"}, 250 * time.Millisecond},
		"Retry-After-Ms of 0":                               {429, []string{"Retry-After-Ms: 0", "Retry-After: 30"}, 30 * time.Second},
		"Retry-After-Ms that cannot be read":                {429, []string{"Retry-After-Ms: 1.2.3", "Retry-After: 30"}, 30 * time.Second},
		"Retry-After-Ms that is empty":                      {429, []string{"Retry-After-Ms: ", "Retry-After: 30"}, 30 * time.Second},
		"x-ms-retry-after-ms":                               {429, []string{"x-ms-retry-after-ms: 1500", "Retry-After: 2"}, 1500 * time.Millisecond},
		"X-RateLimit-Retry-After":                           {429, []string{"X-RateLimit-Retry-After: 7"}, 7 * time.Second},
		"X-RateLimit-Retry-After beside Retry-After":        {429, []string{"X-RateLimit-Retry-After: 7", "Retry-After: 3"}, 3 * time.Second},
		"tokens_usage_based":                                {200, []string{"x-ratelimit-remaining-tokens_usage_based: 0", "x-ratelimit-reset-tokens_usage_based: 6m0s"}, 6 * time.Minute},
		"Anthropic's priority tier": {200, []string{date, "anthropic-priority-input-tokens-remaining: 0", "anthropic-priority-input-tokens-reset: 2025-08-01T12:00:05Z",
			"anthropic-priority-output-tokens-remaining: 0", "anthropic-priority-output-tokens-reset: 2025-08-01T12:00:05Z",
			"anthropic-ratelimit-output-tokens-remaining: 9", "anthropic-ratelimit-output-tokens-reset: 2025-08-01T12:00:09Z"}, 0},
		"Anthropic unified":                                     {429, []string{date, "anthropic-ratelimit-unified-status: rejected", "anthropic-ratelimit-unified-reset: 1754049605"}, 5 * time.Second},
		"Anthropic unified, allowed":                            {200, []string{date, "anthropic-ratelimit-unified-status: allowed_warning", "anthropic-ratelimit-unified-reset: 1754049605"}, 0},
		"a Date far from now":                                   {200, []string{"Date: Fri, 31 Dec 9999 23:59:59 GMT", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1754049605"}, 0},
		"a Date long ago":                                       {200, []string{"Date: Thu, 01 Jan 1500 00:00:00 GMT", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1754049605"}, 87600 * time.Hour},
		"HubSpot":                                               {200, []string{"X-HubSpot-RateLimit-Remaining: 0", "X-HubSpot-RateLimit-Interval-Milliseconds: 10000"}, 10 * time.Second},
		"HubSpot, secondly":                                     {200, []string{"X-HubSpot-RateLimit-Secondly-Remaining: 0", "X-HubSpot-RateLimit-Secondly: 10"}, time.Second},
		"HubSpot, daily":                                        {200, []string{"X-HubSpot-RateLimit-Daily-Remaining: 0"}, 0},
		"429 without a time":                                    {429, nil, time.Second},
		"429 with Retry-After 0":                                {429, []string{"Retry-After: 0"}, 0},
		"429 with Retry-After below 0":                          {429, []string{"Retry-After: -5"}, time.Second},
		"429 with garbage":                                      {429, []string{"Retry-After: soon"}, time.Second},
		"503 without a time":                                    {503, nil, 0},
		"draft 11":                                              {200, []string{`RateLimit: "a";r=0;t=5`}, 5 * time.Second},
		"draft 11, bytes without padding":                       {200, []string{`RateLimit: "a";r=0;t=5, "b";r=0;t=9;pk=:YQ==:, "c";r=1;t=1;pk=:YQ:`}, 9 * time.Second},
		"draft 11, two lines":                                   {200, []string{`RateLimit: "a";r=0;t=5`, `RateLimit: "b";r=0;t=9`}, 9 * time.Second},
		"draft 11, name as a Token":                             {200, []string{`RateLimit: a;r=0;t=5`}, 5 * time.Second},
		"draft 11, w of the policy":                             {200, []string{`RateLimit-Policy: "b";q=1;w=3, "A";q=10;w=6`, `RateLimit: "a";r=0`}, 6 * time.Second},
		"draft 11 with a Date":                                  {200, []string{`RateLimit: "a";r=0;t=5;since=@1754049600, "b";r=0;t=9;x=@-1`}, 9 * time.Second},
		"draft 11 with a Display String":                        {200, []string{`RateLimit: "a";r=0;t=5;title=%"caf%c3%a9, \;r=3", "b";r=0;t=9`}, 9 * time.Second},
		"draft 11 with a malformed Date":                        {200, []string{`RateLimit: "a";r=0;t=5;since=@1.5`}, 0},
		"draft 11 with an empty Date":                           {200, []string{`RateLimit: "a";r=0;t=5;since=@`}, 0},
		"draft 11 with a Display String in capital hex":         {200, []string{`RateLimit: "a";r=0;t=5;title=%"caf%C3%A9"`}, 0},
		"draft 11 with a Display String that is not UTF-8":      {200, []string{`RateLimit: "a";r=0;t=5;title=%"caf%c3"`}, 0},
		"draft 11 with a Display String without end":            {200, []string{`RateLimit: "a";r=0;t=5;title=%"caf%c`}, 0},
		"draft 11, malformed before a good one":                 {200, []string{`RateLimit: ="x", "a";r=0;t=5`}, 0},
		"draft 11 of a cached answer":                           {200, []string{"Age: 120", `RateLimit: "a";r=0;t=60`}, 0},
		"draft 11 of an answer that was cached and revalidated": {200, []string{"Age: 0", `RateLimit: "a";r=0;t=60`}, time.Minute},
		"draft 11 with a malformed Age":                         {200, []string{"Age: -1", `RateLimit: "a";r=0;t=60`}, time.Minute},
		"draft 06 of a cached answer":                           {200, []string{"Age: 1", "RateLimit-Remaining: 0", "RateLimit-Reset: 5"}, 0},
		"X-RateLimit of a cached answer":                        {200, []string{"Age: 1, 0", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 5"}, 0},
		"429 of a cache":                                        {429, []string{"Age: 120", `RateLimit: "a";r=0;t=60`}, time.Second},
		"draft 11, no window at all":                            {200, []string{`RateLimit: "a";r=0`}, 0},
		"draft 11, something left":                              {200, []string{`RateLimit: "a";r=1;t=5`}, 0},
		"draft 11, malformed":                                   {200, []string{`RateLimit: "a;r=0;t=5`}, 0},
		"draft 11, malformed at the end":                        {200, []string{`RateLimit: "a";r=0;t=5, `}, 0},
		"draft 11, before the older ones":                       {200, []string{`RateLimit: "a";r=1;t=5`, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 9"}, 0},
		"429 of draft 11 without Retry-After":                   {429, []string{`RateLimit: "a";r=0;t=5`}, 5 * time.Second},
		"429 though something is left":                          {429, []string{`RateLimit: "a";r=3;t=50`}, time.Second},
		"draft 06":                                              {200, []string{"RateLimit-Remaining: 0", "RateLimit-Reset: 5"}, 5 * time.Second},
		"X-RateLimit in seconds":                                {200, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 5"}, 5 * time.Second},
		"X-RateLimit in Unix time":                              {200, []string{date, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1754049605"}, 5 * time.Second},
		"X-RateLimit in Unix time, no Date":                     {200, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1000000005"}, 53315205 * time.Second}, // from the bubble's clock
		"X-RateLimit with a span of 30 years":                   {200, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 946684805"}, 87600 * time.Hour},
		"X-RateLimit in Unix milliseconds":                      {200, []string{date, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1754049605500"}, 5500 * time.Millisecond},
		"X-RateLimit in Unix time, fraction":                    {200, []string{date, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1754049605.25"}, 5250 * time.Millisecond},
		"X-RateLimit in Unix time that is past":                 {200, []string{date, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1754049000"}, 0},
		"429, X-RateLimit that is past":                         {429, []string{date, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1754049000"}, time.Second},
		"X-RateLimit, something left":                           {200, []string{"X-RateLimit-Remaining: 4", "X-RateLimit-Reset: 5"}, 0},
		"X-RateLimit-Reset-After of 0":                          {200, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset-After: 0", "X-RateLimit-Reset: 5"}, 5 * time.Second},
		"X-RateLimit-Reset-After that cannot be read":           {200, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset-After: 1.2.3", "X-RateLimit-Reset: 5"}, 5 * time.Second},
		"draft 06 that is past":                                 {200, []string{date, "RateLimit-Remaining: 0", "RateLimit-Reset: 1754049000", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 5"}, 5 * time.Second},
		"X-RateLimit without Reset":                             {200, []string{"X-RateLimit-Remaining: 0"}, 0},
		"X-RateLimit with garbage":                              {200, []string{"X-RateLimit-Remaining: none", "X-RateLimit-Reset: NaN"}, 0},
		"X-RateLimit below zero":                                {200, []string{"X-RateLimit-Remaining: -1", "X-RateLimit-Reset: 5"}, 0},
	} {
		bubble(t, name, func(t *testing.T) {
			b := newBackend(once(row.status, fields(row.lines...)))
			c, _ := client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{})
			assert.Equal(t, row.status, fetch(t, c, "http://a/"))
			fetch(t, c, "http://a/")
			assert.InDelta(t, row.want, b.times()[1], 1000, "a float holds no nanoseconds of Unix time")
		})
	}
}

func TestHugeFiguresMakeNoCallerWait(t *testing.T) {
	for _, lines := range [][]string{
		{"Retry-After: 99999999999999999999999999"}, {"Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"},
		{`RateLimit: "a";r=0;t=999999999999999`}, {"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1e308"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBackend(once(429, fields(lines...)))
			c, _ := client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxWait: 24 * 365 * time.Hour})
			fetch(t, c, "http://a/")
			_, err := c.Get("http://a/")
			assert.ErrorIs(t, err, ratelimit.ErrLimited)
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRefusedRequestsAreSentAgainIfThatIsSafe(t *testing.T) {
	unreadable := func() io.Reader { return struct{ io.Reader }{strings.NewReader("body")} }
	for name, row := range map[string]struct {
		method string
		body   io.Reader
		status int
		lines  []string // the response's header
		key    string   // Idempotency-Key
		sent   int
	}{
		"GET":                            {"GET", nil, 429, []string{"Retry-After: 1"}, "", 2},
		"GET without a time":             {"GET", nil, 429, nil, "", 2},
		"GET of a 503":                   {"GET", nil, 503, []string{"Retry-After: 1"}, "", 2},
		"GET of a 503 without a time":    {"GET", nil, 503, nil, "", 1},
		"GET of a 500":                   {"GET", nil, 500, []string{"Retry-After: 1"}, "", 1},
		"PUT with a body to read again":  {"PUT", strings.NewReader("body"), 503, []string{"Retry-After: 1"}, "", 2},
		"POST with a body to read again": {"POST", strings.NewReader("body"), 429, []string{"Retry-After: 1"}, "", 2},
		"POST without a body":            {"POST", nil, 429, []string{"Retry-After: 1"}, "", 2},
		"POST of a 503":                  {"POST", strings.NewReader("body"), 503, []string{"Retry-After: 1"}, "", 1},
		"POST of a 503, with a key":      {"POST", strings.NewReader("body"), 503, []string{"Retry-After: 1"}, "k1", 2},
		"PUT with a body to read once":   {"PUT", unreadable(), 429, []string{"Retry-After: 1"}, "", 1},
		"POST with a body to read once":  {"POST", unreadable(), 429, []string{"Retry-After: 1"}, "", 1},
	} {
		bubble(t, name, func(t *testing.T) {
			b := newBackend(once(row.status, fields(row.lines...)))
			c, transport := client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxRetries: 3})
			r := ratelimit.Must(http.NewRequest(row.method, "http://a/", row.body))
			if row.key != "" {
				r.Header.Set("Idempotency-Key", row.key)
			}
			resp, err := c.Do(r)
			require.NoError(t, err)
			assert.Equal(t, "answer", body(t, resp), "whole, if it is a refusal too")
			assert.Len(t, b.times(), row.sent)
			assert.Equal(t, uint64(row.sent-1), transport.Stats().Retried)
			if row.sent == 2 {
				assert.Equal(t, http.StatusOK, resp.StatusCode)
				assert.Equal(t, time.Second, b.times()[1])
				assert.Equal(t, b.bodies[0], b.bodies[1])
			} else {
				assert.Equal(t, row.status, resp.StatusCode)
			}
		})
	}
}

func TestBodyThatCannotBeReadAgainAfterAllLeavesTheRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(once(429, fields("Retry-After: 1")))
		c, _ := client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxRetries: 3})
		r := ratelimit.Must(http.NewRequest("POST", "http://a/", strings.NewReader("body")))
		r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("the file is gone") }
		resp, err := c.Do(r)
		require.NoError(t, err)
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "answer", body(t, resp))
	})
}

// stalled is a body without data until it is closed.
type stalled struct{ closed chan struct{} }

func (s *stalled) Read([]byte) (int, error) {
	<-s.closed
	return 0, errors.New("closed")
}

func (s *stalled) Close() error { close(s.closed); return nil }

func TestBodyOfARefusalThatDoesNotComeDelaysNoRetry(t *testing.T) {
	for name, row := range map[string]struct {
		header string
		want   time.Duration
	}{
		"until the retry":  {"Retry-After-Ms: 200", 200 * time.Millisecond},
		"for a long while": {"Retry-After: 30", 30 * time.Second},
	} {
		bubble(t, name, func(t *testing.T) {
			begin, refusal := time.Now(), &stalled{make(chan struct{})}
			var sent []time.Duration
			c, _ := client(t, roundTrip(func(r *http.Request) (*http.Response, error) {
				sent = append(sent, time.Since(begin))
				if len(sent) == 1 {
					return &http.Response{StatusCode: 429, Header: fields(row.header), Body: refusal, Request: r}, nil
				}
				return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
			}), reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxRetries: 1, MaxWait: row.want + 1})
			assert.Equal(t, 200, fetch(t, c, "http://a/"))
			assert.Equal(t, []time.Duration{0, row.want}, sent)
			<-refusal.closed
		})
	}
}

// If the refusal's body has arrived, its connection is used again. A stalling server delays no request.
func TestRetryUsesTheConnectionAgainIfItCan(t *testing.T) {
	for name, stall := range map[string]bool{"a short body": false, "a body that stalls": true} {
		t.Run(name, func(t *testing.T) {
			var conns, requests atomic.Int32
			gone := make(chan struct{})
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1) > 1 {
					return
				}
				w.Header().Set("Retry-After-Ms", "100")
				w.WriteHeader(429)
				_, _ = w.Write([]byte("wait"))
				_ = http.NewResponseController(w).Flush()
				if stall {
					<-r.Context().Done()
					close(gone)
				}
			}))
			s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					conns.Add(1)
				}
			}
			s.Start()
			defer s.Close()
			c, _ := client(t, nil, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxRetries: 1})
			assert.Equal(t, 200, fetch(t, c, s.URL))
			want := int32(1)
			if stall {
				want = 2
				<-gone
			}
			assert.Equal(t, want, conns.Load())
			c.CloseIdleConnections()
		})
	}
}

func TestServerCanForbidARetry(t *testing.T) {
	for value, want := range map[string]int{"false": 1, "FALSE": 1, "true": 2, "": 2} {
		synctest.Test(t, func(t *testing.T) {
			b := newBackend(once(429, fields("Retry-After: 1", "x-should-retry: "+value)))
			c, _ := client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxRetries: 1})
			fetch(t, c, "http://a/")
			assert.Len(t, b.times(), want, value)
		})
	}
}

func TestRetriesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for retries := range 4 {
			b := newBackend(func(int, *http.Request) (int, http.Header) { return 429, fields("Retry-After: 2") })
			c, transport := client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxRetries: retries})
			assert.Equal(t, 429, fetch(t, c, "http://a/"))
			assert.Len(t, b.times(), 1+retries)
			assert.Equal(t, uint64(1+retries), transport.Stats().Refused)
			assert.Equal(t, 2*time.Second*time.Duration(retries), time.Since(b.begin))
		}
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(once(429, fields("Retry-After: 10")))
		c, _ := client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{})
		fetch(t, c, "http://a/")
		for _, other := range []string{"https://a/", "http://b/", "http://a:81/"} {
			fetch(t, c, other)
		}
		assert.Zero(t, time.Since(b.begin))
		fetch(t, c, "HTTP://A:80/")
		assert.Equal(t, 10*time.Second, time.Since(b.begin), "the same as http://a")

		b = newBackend(once(429, fields("Retry-After: 10")))
		c, _ = client(t, b, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{Key: func(r *http.Request) (string, error) { return r.URL.Path, nil }})
		fetch(t, c, "http://a/x")
		fetch(t, c, "http://a/y")
		assert.Zero(t, time.Since(b.begin))
		fetch(t, c, "http://b/x")
		assert.Equal(t, 10*time.Second, time.Since(b.begin))
	})
}

func TestNewTransportRefusesOptionsThatCannotWork(t *testing.T) {
	good := reserver(t, ratelimit.Unlimited())
	for want, row := range map[string]struct {
		l    ratelimit.Reserver[*http.Request]
		opts httplimit.TransportOptions
	}{
		"NewTransport: limiter is nil":      {nil, httplimit.TransportOptions{}},
		"the request itself":                {ratelimit.Must(ratelimit.New[*http.Request](ratelimit.Unlimited(), nil)), httplimit.TransportOptions{}},
		"TransportOptions.MaxRetries is -1": {good, httplimit.TransportOptions{MaxRetries: -1}},
		"TransportOptions.MaxKeys is -1":    {good, httplimit.TransportOptions{MaxKeys: -1}},
		"TransportOptions.MaxServerWait is -1ns, want 0 for the default, or more": {good, httplimit.TransportOptions{MaxServerWait: -1}},
		"TransportOptions.MaxInFlight is -1, want 0 for any number, or more":      {good, httplimit.TransportOptions{MaxInFlight: -1}},
	} {
		transport, err := httplimit.NewTransport(nil, row.l, &row.opts)
		assert.ErrorContains(t, err, want)
		assert.Nil(t, transport)
	}
	_, err := httplimit.NewTransport((*http.Transport)(nil), good, nil)
	assert.EqualError(t, err, "httplimit: NewTransport: base holds a nil *http.Transport: give nil itself for none")
}

func TestZeroTransportReturnsAnError(t *testing.T) {
	text := &closing{Reader: strings.NewReader("x")}
	_, err := (*httplimit.Transport)(nil).RoundTrip(httptest.NewRequest("GET", "http://a.example", nil))
	assert.ErrorContains(t, err, "make one with NewTransport")
	_, err = (&http.Client{Transport: new(httplimit.Transport)}).Post("http://a/", "", text)
	assert.ErrorContains(t, err, "httplimit: this Transport is nil or zero: make one with NewTransport")
	assert.True(t, text.closed)
	for _, transport := range []*httplimit.Transport{nil, {}} {
		transport.CloseIdleConnections()
	}
	new(httplimit.Transport).Reset("http://a") // does nothing
}

func TestTargetHost(t *testing.T) {
	for url, want := range map[string]string{
		"http://a/x": "http://a", "HTTP://A:80": "http://a", "https://a:443/": "https://a", "https://a:80": "https://a:80", "http://[::1]:80/": "http://[::1]",
	} {
		got, err := httplimit.TargetHost(ratelimit.Must(http.NewRequest("GET", url, nil)))
		assert.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := httplimit.TargetHost(with())
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	_, err = httplimit.TargetHost(new(http.Request))
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
}

func TestATransportHandsOnThatThereIsNoResponseAndNoError(t *testing.T) {
	none := roundTrip(func(*http.Request) (*http.Response, error) { return nil, nil })
	_, transport := client(t, none, reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxRetries: 1})
	resp, err := transport.RoundTrip(httptest.NewRequest("GET", "http://a.example", nil))
	require.NoError(t, err)
	require.Nil(t, resp)
}

// A refused request would be sent again, but the client's own limit leaves no time. It ends with the server's answer.
func TestTheCallerGetsTheRefusalIfItsOwnLimitLeavesNoTime(t *testing.T) {
	long := strings.Repeat("a", 100<<10)
	for name, row := range map[string]struct {
		opts     httplimit.TransportOptions
		deadline time.Duration
		body     io.ReadCloser
		text     string
		err      error
	}{
		"MaxWait":      {httplimit.TransportOptions{MaxRetries: 1, MaxWait: 2 * time.Second}, time.Hour, io.NopCloser(strings.NewReader("why")), "why", nil},
		"the deadline": {httplimit.TransportOptions{MaxRetries: 1}, 3 * time.Second, io.NopCloser(strings.NewReader("why")), "why", nil},
		"a long body":  {httplimit.TransportOptions{MaxRetries: 1}, 3 * time.Second, io.NopCloser(strings.NewReader(long)), long[:64<<10], io.ErrUnexpectedEOF},
		"no body":      {httplimit.TransportOptions{MaxRetries: 1}, 3 * time.Second, nil, "", nil},
	} {
		bubble(t, name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), row.deadline)
			defer cancel()
			l := reserver(t, ratelimit.FixedWindow(ratelimit.PerHour(3)))
			require.True(t, l.Allow(httptest.NewRequest("GET", "http://a.example", nil), 1))
			cost := 1 // the refused attempt costs nothing, and the next one more than is left
			row.opts.Cost = func(*http.Request) int { cost += 2; return cost - 2 }
			c, _ := client(t, roundTrip(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 429, Header: fields("Retry-After-Ms: 10"), Body: row.body}, nil
			}), l, row.opts)
			resp, err := c.Do(ratelimit.Must(http.NewRequestWithContext(ctx, "GET", "http://a.example", nil)))
			require.NoError(t, err)
			assert.Equal(t, 429, resp.StatusCode)
			text, err := io.ReadAll(resp.Body)
			assert.Equal(t, row.err, err)
			assert.Equal(t, row.text, string(text))
		})
	}
}
