// Login protects a login against guessed passwords. The fifth wrong password for an account from one address within
// 15 minutes bans the address from the account for an hour. Other addresses can still log in, so no client can lock
// out an account's owner. An address with 50 failures, for any accounts, is denied until the 15 minutes are over.
//
//	go run ./examples/login
//	curl -d name=ann -d password=guess http://127.0.0.1:8080/login
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/netip"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

func main() {
	handler, err := newLogin(func(name, password string) bool { return name == "ann" && password == "correct horse" })
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// guess is an account, tried from an address.
type guess = keyfunc.Pair[string, netip.Addr]

// banAfterFive returns a limiter that bans a key for an hour at the fifth strike within
// any 15 minutes. It has no limit of its own, because each wrong password is a strike.
func banAfterFive() (*ban.Limiter[guess], error) {
	strikes := ratelimit.Must(ratelimit.New[guess](ratelimit.SlidingLog(ratelimit.Per(5, 15*time.Minute)), nil))
	bans := ratelimit.Must(ratelimit.New[guess](ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("ban"), nil))
	return ban.New[guess](nil, strikes, bans)
}

// newLogin returns the handler. It charges each attempt before it checks the password, so concurrent
// attempts check no more passwords than successive ones. Settle refunds the attempts that did not fail.
func newLogin(check func(name, password string) bool) (http.Handler, error) {
	guesses, err := banAfterFive()
	if err != nil {
		return nil, err
	}
	attempts := ratelimit.Must(ratelimit.New[guess](ratelimit.SlidingLog(ratelimit.Per(5, 15*time.Minute)).Named("account"), nil))
	// There is no ban, because many users may log in from one address at once.
	addresses := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.FixedWindow(ratelimit.Per(50, 15*time.Minute)).Named("address"), nil))
	guessOf := keyfunc.Join(account, httplimit.RemoteIP)
	all, err := chain.New(ratelimit.Map(addresses, httplimit.RemoteIP), ratelimit.Map(guesses, guessOf), ratelimit.Map(attempts, guessOf))
	if err != nil {
		return nil, err
	}
	limit, err := httplimit.New(all, &httplimit.Options{Settle: httplimit.ChargeOnly(http.StatusUnauthorized)})
	if err != nil {
		return nil, err
	}
	login := limit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, err := guessOf(r)
		if err != nil {
			http.Error(w, "no name", http.StatusBadRequest)
			return
		}
		ctx := context.WithoutCancel(r.Context()) // a client that hangs up still gets the strike
		if !check(r.PostFormValue("name"), r.PostFormValue("password")) {
			if err := guesses.Strike(ctx, key, 1); err != nil {
				log.Print(err)
			}
			http.Error(w, "wrong name or password", http.StatusUnauthorized)
			return
		}
		if err := errors.Join(guesses.Reset(ctx, key), ratelimit.Reset(ctx, attempts, key)); err != nil { // a success resets the failures
			log.Print(err)
		}
		fmt.Fprintln(w, "welcome")
	}))
	mux := http.NewServeMux()
	mux.Handle("POST /login", http.MaxBytesHandler(login, 4<<10)) // the name is in the body
	return mux, nil
}

// account is a key function. Its key is the account in a login.
func account(r *http.Request) (string, error) {
	name := r.PostFormValue("name")
	switch {
	case name == "":
		return "", fmt.Errorf("%w: no name", keyfunc.ErrNoKey)
	case len(name) > 100:
		return "", fmt.Errorf("%w: a name of %d bytes", keyfunc.ErrMalformedKey, len(name))
	}
	return name, nil
}
