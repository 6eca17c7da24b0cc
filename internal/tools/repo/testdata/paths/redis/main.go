// Redis decides once on a token bucket on a server, and writes what code has run into a folder. It is built with -cover by the
// test of paths.
package main

import (
	"context"
	"log"
	"os"
	"runtime/coverage"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/redislimit"
)

func main() {
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: os.Args[2]})
	for try := 0; client.Ping(context.Background()).Err() != nil; try++ {
		if try == 1000 {
			log.Fatal("redis-server does not answer")
		}
		time.Sleep(10 * time.Millisecond)
	}
	limiter, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerHour(10), 20).Named("api"), &redislimit.Options{Timeout: time.Minute})
	must(err)
	for range 2 { // the second time the server knows the script
		must(coverage.ClearCounters())
		if !limiter.Allow("known", 1) {
			log.Fatal("denied")
		}
	}
	must(coverage.WriteMetaDir(os.Args[1]))
	must(coverage.WriteCountersDir(os.Args[1]))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
