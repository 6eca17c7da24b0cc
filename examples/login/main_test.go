package main

import (
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
)

// attempt sends a login from an address, and returns the answer.
func attempt(h http.Handler, ip, name, password string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader("name="+name+"&password="+password))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.RemoteAddr = ip + ":1234"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestFiveOfFortyWrongPasswordsAtOnceAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checked atomic.Int32
		h, err := newLogin(func(_, password string) bool {
			checked.Add(1)
			time.Sleep(100 * time.Millisecond) // as long as hashing a password takes
			return password == "right"
		})
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() { attempt(h, "192.0.2.1", "ann", "wrong") })
		}
		all.Wait()
		assert.Equal(t, int32(5), checked.Load())

		banned := attempt(h, "192.0.2.1", "ann", "right")
		assert.Equal(t, http.StatusTooManyRequests, banned.Code, "the right one too")
		assert.Equal(t, "3600", banned.Header().Get("Retry-After"))
		assert.Equal(t, http.StatusOK, attempt(h, "192.0.2.2", "ann", "right").Code, "the owner, elsewhere")
		assert.Equal(t, http.StatusOK, attempt(h, "192.0.2.1", "bob", "right").Code, "another account")
		time.Sleep(time.Hour)
		assert.Equal(t, http.StatusOK, attempt(h, "192.0.2.1", "ann", "right").Code, "after the ban")
	})
}

func TestSuccessForgetsTheFailures(t *testing.T) {
	h, err := newLogin(func(_, password string) bool { return password == "right" })
	require.NoError(t, err)
	for range 10 {
		for range 4 {
			assert.Equal(t, http.StatusUnauthorized, attempt(h, "192.0.2.1", "ann", "wrong").Code)
		}
		assert.Equal(t, http.StatusOK, attempt(h, "192.0.2.1", "ann", "right").Code)
	}
}

func TestManyRightPasswordsAtOnceFromOneAddressBanNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := newLogin(func(_, password string) bool {
			time.Sleep(100 * time.Millisecond)
			return password == "right"
		})
		require.NoError(t, err)
		var all sync.WaitGroup
		for i := range 60 {
			all.Go(func() { attempt(h, "192.0.2.1", strings.Repeat("x", i+1), "right") })
		}
		all.Wait()
		assert.Equal(t, http.StatusOK, attempt(h, "192.0.2.1", "ann", "right").Code)
	})
}

func TestAnAddressThatTriesManyAccountsIsDenied(t *testing.T) {
	h, err := newLogin(func(_, password string) bool { return password == "right" })
	require.NoError(t, err)
	for i := range 50 {
		assert.Equal(t, http.StatusUnauthorized, attempt(h, "192.0.2.1", strings.Repeat("x", i+1), "wrong").Code)
	}
	assert.Equal(t, http.StatusTooManyRequests, attempt(h, "192.0.2.1", "ann", "right").Code)
	assert.Equal(t, http.StatusOK, attempt(h, "192.0.2.2", "ann", "right").Code)
	assert.Equal(t, http.StatusBadRequest, attempt(h, "192.0.2.2", "", "right").Code)
}

// One address guesses an account's password for a day. Without a
// ban, it could make 480 guesses, five each quarter of an hour.
func TestADayOfGuessesChecksFivePasswordsAnHour(t *testing.T) {
	for name, every := range map[string]time.Duration{"five each quarter of an hour": 0, "one each ten seconds": 10 * time.Second, "one each three minutes": 3 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				checked := 0
				h, err := newLogin(func(_, password string) bool {
					if password == "right" {
						return true
					}
					checked++
					return false
				})
				require.NoError(t, err)
				var bannedAt time.Time
				for begin, i := time.Now(), 0; time.Since(begin) < 24*time.Hour; i++ {
					code := attempt(h, "192.0.2.1", "ann", "wrong").Code
					if code == http.StatusTooManyRequests && bannedAt.IsZero() {
						bannedAt = time.Now()
						assert.Equal(t, 5, checked, "wrong passwords before the first ban")
					}
					switch {
					case every > 0:
						time.Sleep(every)
					case i%5 == 4:
						assert.Equal(t, http.StatusOK, attempt(h, "192.0.2.9", "ann", "right").Code, "the owner, elsewhere")
						time.Sleep(15 * time.Minute)
					}
				}
				assert.False(t, bannedAt.IsZero(), "the address is banned")
				assert.LessOrEqual(t, checked, 24*5)
				assert.GreaterOrEqual(t, checked, 95, "bans end")
			})
		})
	}
}
