package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// banAfter bans a key for an hour after that many failures within 15 minutes.
func banAfter[K comparable](failures int, name string) *ban.Limiter[K] {
	attempts := ratelimit.Must(ratelimit.New[K](ratelimit.FixedWindow(ratelimit.PerMinute(20)).Named(name), nil))
	strikes := ratelimit.Must(ratelimit.New[K](ratelimit.FixedWindow(ratelimit.Per(failures, 15*time.Minute)), nil))
	bans := ratelimit.Must(ratelimit.New[K](ratelimit.FixedWindow(ratelimit.Per(1, time.Hour)).Named(name+"-ban"), nil))
	b, err := ban.New(attempts, strikes, bans)
	if err != nil {
		log.Fatal(err)
	}
	return b
}

// Five failed logins for each account, 50 for each address, and then a ban. The failure is known
// after the password was checked, so the handler reports it as a strike.
func Example_failedLogins() {
	byAccount := banAfter[string](5, "account")
	byIP := banAfter[netip.Addr](50, "address")
	account := func(r *http.Request) (string, error) {
		if name := r.PostFormValue("name"); name != "" && len(name) <= 100 {
			return name, nil
		}
		return "", keyfunc.ErrNoKey // answered with 400
	}
	both, err := chain.New(ratelimit.Map(byIP, httplimit.RemoteIP), ratelimit.Map(byAccount, account))
	if err != nil {
		log.Fatal(err)
	}
	limit := ratelimit.Must(httplimit.New(both, &httplimit.Options{Logger: slog.New(slog.DiscardHandler)}))
	login := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("password") == "right" {
			return
		}
		http.Error(w, "wrong password", http.StatusUnauthorized)
		name, _ := account(r) // the limit has found them before
		ip, _ := httplimit.RemoteIP(r)
		if err := errors.Join(byAccount.Strike(r.Context(), name, 1), byIP.Strike(r.Context(), ip, 1)); err != nil {
			slog.Error("a failed login was not counted", "error", err)
		}
	})
	h := http.MaxBytesHandler(limit.Wrap(login), 4<<10) // the name is in the body

	for _, form := range []string{"name=ann&password=1", "name=ann&password=2", "name=ann&password=3", "name=ann&password=4",
		"name=ann&password=right", "name=ann&password=5", "name=ann&password=right", "name=bob&password=right"} {
		r := request("POST", "/login")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Body = io.NopCloser(strings.NewReader(form))
		show(h, r)
	}
	d, _ := byAccount.Peek(context.Background(), "ann", 1)
	fmt.Println(d.Limit.Name, d.RetryAfter.Round(time.Minute))
	// Output:
	// 401
	// 401
	// 401
	// 401
	// 200
	// 401
	// 429
	// 200
	// account-ban 1h0m0s
}
