package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"
)

//go:embed index.html
var page []byte

const (
	maxRate    = 2000 // requests a second
	maxSeconds = 60
	maxFlying  = 256 // requests under way
	clients    = 3   // how many clients the load has
)

// handler serves the page, and passes everything below /api on to the servers. Its load ends with the context.
func (f *fleet) handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page) // an error means that the client has gone
	})
	mux.HandleFunc("GET /status", f.serveStatus)
	mux.HandleFunc("POST /redis", f.serveRedis)
	mux.Handle("POST /load", f.serveLoad(ctx))
	mux.Handle("/api/", f.proxy)
	// The page can stop processes of this machine, so no other site may make a browser use it.
	return http.NewCrossOriginProtection().Handler(mux)
}

func (f *fleet) serveStatus(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(f.status()); err != nil {
		slog.Warn("the page is gone", "error", err)
	}
}

func (f *fleet) serveRedis(w http.ResponseWriter, r *http.Request) {
	down, err := strconv.ParseBool(r.FormValue("down"))
	if err == nil {
		err = f.kill(down)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// running is the current load. The zero value means no load.
type running struct {
	Rate int     `json:"rate"` // requests a second
	Left float64 `json:"left"` // seconds
}

// load is the load in progress, at most one at a time. The zero value means no load.
type load struct {
	mu   sync.Mutex // guards the fields below
	rate int        // 0 means no load
	end  time.Time
}

// begin starts a load. It returns false if there is one already.
func (l *load) begin(rate, seconds int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate > 0 {
		return false
	}
	l.rate, l.end = rate, time.Now().Add(time.Duration(seconds)*time.Second)
	return true
}

func (l *load) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = 0
}

func (l *load) now() (r running) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate > 0 {
		r = running{l.rate, max(0, time.Until(l.end).Seconds())}
	}
	return r
}

// serveLoad sends load to the proxy.
func (f *fleet) serveLoad(ctx context.Context) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rate, err1 := number(r, "rate", maxRate)
		seconds, err2 := number(r, "seconds", maxSeconds)
		switch {
		case err1 != nil || err2 != nil:
			http.Error(w, fmt.Sprint(err1, err2), http.StatusBadRequest)
		case !f.load.begin(rate, seconds):
			http.Error(w, "there is load already", http.StatusConflict)
		default:
			go func() {
				defer f.load.finish()
				f.fire(ctx, rate, seconds)
			}()
		}
	})
}

// number reads a number from 1 to most.
func number(r *http.Request, name string, most int) (int, error) {
	n, err := strconv.Atoi(r.FormValue(name))
	if err == nil && (n < 1 || n > most) {
		err = fmt.Errorf("%s is %d, want 1 to %d", name, n, most)
	}
	return n, err
}

// fire sends rate requests a second, evenly, from several clients.
func (f *fleet) fire(ctx context.Context, rate, seconds int) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
	defer cancel()
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxFlying)
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		slots <- struct{}{}
		wg.Go(func() {
			f.send(i % clients)
			<-slots
		})
	}
}

// send sends one request through the proxy.
func (f *fleet) send(client int) {
	r := httptest.NewRequest(http.MethodGet, "/api/hello", nil)
	r.RequestURI = ""
	r.Header.Set("X-Client", fmt.Sprintf("client-%d", client))
	f.proxy.ServeHTTP(httptest.NewRecorder(), r)
}
