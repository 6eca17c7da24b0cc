package redislimit

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// after this time without a message the server is sent a PING; after twice this time the connection is closed
	receiveTimeout = 2 * time.Second
	keepUnused     = 5 * time.Second // how long a subscription without waiting callers is kept

	firstPause = 250 * time.Millisecond // the pause before a failed subscription is repeated; it doubles each time
	lastPause  = 5 * time.Second
)

// subscriptions are the channels on which a Semaphore receives messages: one for each
// key with waiting callers, and a connection for each server of such keys. Semaphore.mu
// guards them, and their contents. No goroutine waits for I/O while it holds this lock.
type subscriptions struct {
	of          *Semaphore
	connections map[string]*connection   // by address
	byChannel   map[string]*subscription // by channel
	byKey       map[string]*subscription // by Redis key
	notBefore   time.Time                // the earliest time of the next subscription
	pause       time.Duration
	tidying     bool // a timer for tidy is set
}

// connection is a connection for messages. Its goroutine ends when it is closed or fails.
type connection struct {
	addr     string
	pubsub   *redis.PubSub
	channels int
}

// subscription is a key's channel.
type subscription struct {
	redisKey, channel string
	key               string
	on                *connection // its connection; nil until there is one
	confirmed         bool
	unused            time.Time // when the last caller left; zero while some wait
}

// use reports whether messages for a key arrive, now that callers wait for it.
func (u *subscriptions) use(redisKey string) bool {
	sub := u.byKey[redisKey]
	if sub == nil {
		return false
	}
	sub.unused = time.Time{}
	return sub.confirmed
}

// disuse records that no caller waits for a key.
func (u *subscriptions) disuse(redisKey string) {
	if sub := u.byKey[redisKey]; sub != nil {
		sub.unused = time.Now()
		u.tidyLater()
	}
}

// want begins a line's subscription, unless it has one or has just failed to get one.
func (u *subscriptions) want(l *localLine) {
	if u.byKey[l.redisKey] != nil || time.Now().Before(u.notBefore) {
		return
	}
	if u.byKey == nil {
		u.connections, u.byChannel, u.byKey = make(map[string]*connection), make(map[string]*subscription), make(map[string]*subscription)
	}
	sub := &subscription{key: l.key, redisKey: l.redisKey, channel: l.redisKey + "!" + u.of.process}
	u.byKey[sub.redisKey], u.byChannel[sub.channel] = sub, sub
	go u.of.subscribe(sub)
}

// failed ends a subscription without messages.
func (u *subscriptions) failed(redisKey string) {
	if sub := u.byKey[redisKey]; sub != nil && sub.confirmed {
		u.postpone()
		u.forget(sub)
		go unsubscribe(sub.on, sub.channel)
	}
}

func unsubscribe(c *connection, channel string) {
	_ = c.pubsub.SUnsubscribe(context.Background(), channel) // if this fails, the connection fails, too
}

// postpone delays the next subscription.
func (u *subscriptions) postpone() {
	u.pause = min(max(2*u.pause, firstPause), lastPause)
	u.notBefore = time.Now().Add(u.pause)
}

func (u *subscriptions) forget(sub *subscription) {
	sub.confirmed = false
	delete(u.byKey, sub.redisKey)
	delete(u.byChannel, sub.channel)
	if sub.on != nil {
		sub.on.channels--
		u.tidyLater()
	}
}

// tidyLater makes tidy examine possibly unused subscriptions and connections.
func (u *subscriptions) tidyLater() {
	if !u.tidying {
		u.tidying = true
		time.AfterFunc(keepUnused, u.of.tidy)
	}
}

// tidy ends the subscriptions unused for a while, and connections without any.
func (s *Semaphore) tidy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &s.subs
	u.tidying = false
	for _, sub := range u.byKey {
		switch {
		case sub.unused.IsZero():
		case sub.on == nil || time.Since(sub.unused) < keepUnused:
			u.tidyLater()
		default:
			u.forget(sub)
			if sub.on.channels > 0 {
				go unsubscribe(sub.on, sub.channel)
			}
		}
	}
	for addr, c := range u.connections {
		if c.channels == 0 {
			delete(u.connections, addr)
			go c.pubsub.Close()
		}
	}
}

var errNoServers = errors.New("the type of the client does not say which server has a key")

// server returns a key's server.
func (s *Semaphore) server(redisKey string) (*redis.Client, error) {
	switch c := s.store.user.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(context.Background(), redisKey)
	case *redis.Ring:
		return c.GetShardClientForKey(redisKey)
	}
	return nil, errNoServers
}

// subscribe subscribes to a channel. If there is no connection to its server, subscribe makes one.
func (s *Semaphore) subscribe(sub *subscription) {
	server, err := s.server(sub.redisKey)
	if errors.Is(err, errNoServers) {
		s.warn(err.Error())
	}
	s.mu.Lock()
	if err != nil {
		s.subs.forget(sub)
		s.subs.postpone()
		s.mu.Unlock()
		return
	}
	addr := server.Options().Addr
	c := s.subs.connections[addr]
	if c == nil {
		c = &connection{addr: addr, pubsub: server.SSubscribe(context.Background())}
		s.subs.connections[addr] = c
		go s.receive(c)
	}
	sub.on = c
	c.channels++
	if s.lines[sub.key] == nil {
		sub.unused = time.Now()
		s.subs.tidyLater()
	}
	s.mu.Unlock()
	if err := c.pubsub.SSubscribe(context.Background(), sub.channel); err != nil {
		s.disconnect(c)
	}
}

// receive passes on a connection's messages until it fails or is closed.
func (s *Semaphore) receive(c *connection) {
	defer s.disconnect(c)
	for pinged := false; ; {
		m, err := c.pubsub.ReceiveTimeout(context.Background(), receiveTimeout)
		var timeout net.Error
		switch {
		case err == nil:
			pinged = false
			s.received(c, m)
		case errors.As(err, &timeout) && timeout.Timeout() && !pinged && c.pubsub.Ping(context.Background()) == nil:
			pinged = true
		default:
			if redis.HasErrorPrefix(err, "NOPERM") {
				s.warn("Redis refuses SSUBSCRIBE on its channels")
			}
			return
		}
	}
}

func (s *Semaphore) received(c *connection, m any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &s.subs
	switch m := m.(type) {
	case *redis.Message:
		if sub := u.byChannel[m.Channel]; sub != nil && s.lines[sub.key] != nil {
			s.lines[sub.key].message(m.Payload)
		}
	case *redis.Subscription:
		sub := u.byChannel[m.Channel]
		if sub == nil || sub.on != c {
			return
		}
		listens := m.Kind == "ssubscribe"
		if listens {
			sub.confirmed = true
			u.pause = 0
		} else { // the key has moved to another server
			u.forget(sub)
		}
		if l := s.lines[sub.key]; l != nil {
			l.listen(listens)
		}
	}
}

// disconnect closes a connection, and ends all its subscriptions.
func (s *Semaphore) disconnect(c *connection) {
	_ = c.pubsub.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &s.subs
	if u.connections[c.addr] != c {
		return
	}
	delete(u.connections, c.addr)
	u.postpone()
	for _, sub := range u.byKey {
		if sub.on == c {
			u.forget(sub)
			if l := s.lines[sub.key]; l != nil {
				l.listen(false)
			}
		}
	}
}

// warn logs once that no messages arrive.
func (s *Semaphore) warn(reason string) {
	if s.warned.Swap(true) {
		return
	}
	logger := s.logger
	if logger == nil {
		logger = slog.Default()
	}
	logger.Warn("redislimit: a semaphore polls, since it receives no messages: waiting callers are served late", "reason", reason)
}
