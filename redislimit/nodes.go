package redislimit

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// nodes are the servers behind a Ring or a ClusterClient. Each has its own lane: a hanging
// server holds up no call to another one, and a round trip never waits for two of them.
//
// The Ring or the ClusterClient itself sends a lane's calls, so its hooks run, and a ClusterClient follows moved slots.
type nodes struct {
	client    redis.UniversalClient
	batchSize int
	declare   bool // all keys are declared

	// find returns a key's server, without waiting.
	find func(key string) (*redis.Client, error)

	// cluster is nil for a Ring.
	cluster  *redis.ClusterClient
	loaded   atomic.Bool  // the cluster's slots are known: until then, finding a node may take I/O
	reloaded atomic.Int64 // when a failed call last caused a reload of the slots

	// lanes has a lane for each address. The lanes of removed servers stay: they are small, and new addresses are rare.
	lanes sync.Map
}

// newNodes returns the servers behind a client, or nil if it has only one, or its type does not distinguish them.
func newNodes(client redis.UniversalClient, batchSize int, declare bool) *nodes {
	n := &nodes{client: client, batchSize: batchSize, declare: declare}
	switch c := client.(type) {
	case *redis.Ring:
		n.find = c.GetShardClientForKey
	case *redis.ClusterClient:
		n.cluster = c
		n.find = func(key string) (*redis.Client, error) { return c.MasterForKey(context.Background(), key) }
	default:
		return nil
	}
	return n
}

// lane returns the lane of a key's server, or nil if the server is unknown.
func (n *nodes) lane(key string) *lane {
	if n.cluster != nil && !n.loaded.Load() {
		return nil
	}
	node, err := n.find(key)
	if err != nil {
		return nil
	}
	addr := node.Options().Addr
	if l, ok := n.lanes.Load(addr); ok {
		return l.(*lane)
	}
	fresh := newLane(n.client, n.batchSize, false)
	if n.cluster != nil {
		fresh.share.Store(uint32(shareSlot))
		if !n.declare {
			fresh.elsewhere = func(key string) string { return n.elsewhere(key, addr) }
		}
	}
	l, _ := n.lanes.LoadOrStore(addr, fresh)
	return l.(*lane)
}

// reloadEvery is the minimum time between two reloads of a ClusterClient's slots after failed calls. The client
// itself reloads them every ten seconds, and when a server reports a moved slot; a dead server reports nothing.
const reloadEvery = 500 * time.Millisecond

// observe notes a call's result. After a success the slots are known. After most failures they may be outdated.
func (n *nodes) observe(err error) {
	if n.cluster == nil {
		return
	}
	var answer redis.Error
	if err == nil || errors.As(err, &answer) && !strings.HasPrefix(answer.Error(), "CLUSTERDOWN") && !strings.HasPrefix(answer.Error(), "READONLY") {
		if !n.loaded.Load() {
			n.loaded.Store(true)
		}
		return
	}
	last, now := n.reloaded.Load(), time.Now().UnixNano()
	if now-last >= int64(reloadEvery) && n.reloaded.CompareAndSwap(last, now) {
		n.cluster.ReloadState(context.Background()) // the call only starts a reload
	}
}
