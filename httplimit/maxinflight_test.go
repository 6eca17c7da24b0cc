package httplimit_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

func TestAResponsesBodyHoldsItsSlotUntilItEnds(t *testing.T) {
	for name, ends := range map[string]func(*testing.T, *http.Response){
		"read": func(t *testing.T, resp *http.Response) {
			_, err := io.Copy(io.Discard, resp.Body)
			assert.NoError(t, err)
		},
		"close": func(t *testing.T, resp *http.Response) { assert.NoError(t, resp.Body.Close()) },
		"both, twice": func(t *testing.T, resp *http.Response) {
			for range 2 {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, transport := client(t, newBackend(nil), reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxInFlight: 1})
				first, err := c.Get("http://a/1")
				require.NoError(t, err)
				assert.EqualValues(t, 1, transport.Stats().InFlight)
				assert.Equal(t, 200, fetch(t, c, "http://b/other key"))
				second := make(chan int)
				go func() { second <- fetch(t, c, "http://a/2") }()
				synctest.Wait()
				assert.EqualValues(t, 2, transport.Stats().Sent)
				ends(t, first)
				assert.Equal(t, 200, <-second)
				assert.Zero(t, transport.Stats().InFlight)
			})
		})
	}
}

// duplex is the connection of a response that switches protocols.
type duplex struct{ io.Reader }

func (duplex) Write(p []byte) (int, error) { return len(p), nil }
func (duplex) Close() error                { return nil }

// A request leaves nothing behind, however it ends: an error, a response without a body, a refusal that is repeated, a switch of protocols.
func TestASlotComesBackHoweverARequestEnds(t *testing.T) {
	answers := map[string]func(n int) (*http.Response, error){
		"an error": func(int) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
		"nothing":  func(int) (*http.Response, error) { return nil, nil },
		"no body":  func(int) (*http.Response, error) { return &http.Response{StatusCode: 204, Body: http.NoBody}, nil },
		"a panic":  func(int) (*http.Response, error) { panic("below") },
		"a failure": func(int) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(cutOff{})}, nil
		},
		"a refusal": func(n int) (*http.Response, error) {
			resp := &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("answer"))}
			if n%2 == 1 {
				resp.StatusCode, resp.Header = 429, fields("Retry-After: 1")
			}
			return resp, nil
		},
		"a connection": func(int) (*http.Response, error) {
			return &http.Response{StatusCode: 101, Body: duplex{strings.NewReader("")}}, nil
		},
		"no connection": func(int) (*http.Response, error) {
			return &http.Response{StatusCode: 101, Body: io.NopCloser(strings.NewReader(""))}, nil
		},
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				_, transport := client(t, roundTrip(func(*http.Request) (*http.Response, error) { n++; return answer(n) }),
					reserver(t, ratelimit.Unlimited()), httplimit.TransportOptions{MaxInFlight: 1, MaxRetries: 1})
				for range 3 {
					func() {
						defer func() { _ = recover() }()
						r, err := http.NewRequest("GET", "http://a/", nil)
						require.NoError(t, err)
						resp, err := transport.RoundTrip(r)
						if err != nil || resp == nil {
							return
						}
						if conn, ok := resp.Body.(io.Writer); ok {
							_, err := conn.Write([]byte("hello"))
							assert.NoError(t, err)
							_, _ = io.ReadAll(resp.Body)
							assert.EqualValues(t, 1, transport.Stats().InFlight, "until it is closed")
							_ = resp.Body.Close()
						}
						_, _ = io.ReadAll(resp.Body)
					}()
					assert.Zero(t, transport.Stats().InFlight)
				}
			})
		})
	}
}

type cutOff struct{}

func (cutOff) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
