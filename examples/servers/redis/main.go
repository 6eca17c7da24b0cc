// Redis holds three processes to one limit of 50 units a second with bursts of 20, kept in Redis. Each process alone
// sends many more requests. The example prints each process's admissions, their sum, and the bound: burst + rate · time.
//
//	go -C examples/servers run ./redis
//	go -C examples/servers run ./redis -addr localhost:6379
//
// Without -addr it starts its own redis-server. If none is installed, it starts an embedded server, and prints that.
package main

import (
	"context"
	"flag"
	"io"
	"log"
	"os"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/examples/servers/store"
)

// limit is the limit shared by the processes.
var limit = ratelimit.TokenBucket(ratelimit.PerSecond(50), 20).Named("quickstart")

func main() {
	addr := flag.String("addr", "", "`host:port` of Redis; empty: start one")
	embedded := flag.Bool("embedded", false, "start the embedded server even if there is a redis-server")
	lasts := flag.Duration("for", 3*time.Second, "how long the processes send requests")
	worker := flag.Bool("worker", false, "be one of the processes; the example sets it")
	flag.Parse()
	var err error
	if *worker {
		err = work(context.Background(), *addr, *lasts, os.Stdout)
	} else {
		err = run(context.Background(), *addr, *embedded, *lasts, os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run starts a server if necessary, lets the processes send requests, and prints a report.
func run(ctx context.Context, addr string, embedded bool, lasts time.Duration, out io.Writer) error {
	name := addr
	if addr == "" {
		s, err := store.Start(embedded)
		if err != nil {
			return err
		}
		defer s.Close()
		addr, name = s.Addr(), s.Name()
	}
	results, err := fleet(ctx, addr, lasts)
	if err != nil {
		return err
	}
	return report(out, name, results)
}
