package main

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/weir-go/ratelimit/examples/servers/store"
)

// fleet consists of the servers, their store, and the proxy in front of them.
type fleet struct {
	store store.Store
	nodes []*node
	proxy http.Handler
	load  load

	mu   sync.Mutex // guards the fields below, and is held while the store is killed or revived
	down bool
	lost int // how often the store was killed and lost its keys

	watch *watch
}

func newFleet(embedded bool) (*fleet, error) {
	s, err := store.Start(embedded)
	if err != nil {
		return nil, err
	}
	f := &fleet{store: s}
	var targets []*url.URL
	for i := range nodes {
		n, err := newNode(fmt.Sprintf("server %d", i+1), s.Addr())
		if err != nil {
			f.close()
			return nil, err
		}
		f.nodes = append(f.nodes, n)
		u, err := url.Parse(n.server.URL)
		if err != nil {
			f.close()
			return nil, err
		}
		targets = append(targets, u)
	}
	f.proxy = roundRobin(targets)
	f.watch = startWatch(f)
	return f, nil
}

// roundRobin sends each request to the next server.
func roundRobin(targets []*url.URL) http.Handler {
	var next atomic.Uint64
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 128
	return &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(targets[next.Add(1)%uint64(len(targets))])
			r.SetXForwarded()
		},
	}
}

// kill kills Redis, or revives it without data.
func (f *fleet) kill(down bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down == down {
		return nil
	}
	act := f.store.Revive
	if down {
		act = f.store.Kill
	}
	if err := act(); err != nil {
		return err
	}
	if f.down = down; down {
		f.lost++
	}
	return nil
}

// status is the page's content.
type status struct {
	Redis string   `json:"redis"`
	Down  bool     `json:"down"`
	Limit string   `json:"limit"`
	Nodes []counts `json:"nodes"`
	Fleet second   `json:"fleet"`
	Load  running  `json:"load"`
}

func (f *fleet) status() status {
	f.mu.Lock()
	down := f.down
	f.mu.Unlock()
	s := status{Redis: f.store.Name(), Down: down, Limit: limit.String(), Fleet: f.watch.last(), Load: f.load.now()}
	for _, n := range f.nodes {
		s.Nodes = append(s.Nodes, n.counts())
	}
	return s
}

func (f *fleet) close() {
	if f.watch != nil {
		f.watch.stop()
	}
	for _, n := range f.nodes {
		n.close()
	}
	f.store.Close()
}
