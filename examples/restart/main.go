// Restart keeps spending over a restart. It spends a request of each of two clients every 100 ms, 20 an hour. On SIGTERM or an interrupt it
// stops, writes each client's spending to a file, and ends. The next run reads the file, and goes on where this one has stopped:
//
//	go run ./examples/restart     # stop it with Ctrl-C
//	go run ./examples/restart     # goes on
//
// The time between two runs is measured by the wall clock. If that is set back in between, too little time is believed to have passed, or
// none: a client waits longer than it has to. If it is set forward, clients regain budget without waiting, as much as that step is worth. A
// program that is killed, or whose machine is, writes nothing: the next run begins with the file of before, if there is one, and does not
// know of the spending since. Where that matters, keep the budgets on Redis or in a database.
package main

import (
	"context"
	"encoding/gob"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weir-go/ratelimit"
)

func main() {
	path := flag.String("state", filepath.Join(os.TempDir(), "ratelimit-restart.state"), "the file that keeps the spending")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	limiter, err := ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(20)), nil)
	if err != nil {
		return err
	}
	if err := load(limiter, path); err != nil {
		// All that could be read is restored. A service should rather start than not.
		fmt.Fprintln(os.Stderr, "not all could be restored:", err)
	}
	spend(ctx, limiter)
	// The traffic has stopped. Later spending is not in the file.
	if err := save(limiter, path); err != nil {
		return err
	}
	fmt.Println("saved")
	return nil
}

// spend is the service: it ends when the context does, or when nothing is left.
func spend(ctx context.Context, limiter *ratelimit.Keyed[string]) {
	for {
		allowed := false
		for _, client := range []string{"ann", "bob"} {
			d, err := limiter.Take(ctx, client, 1)
			if err != nil {
				fmt.Println(client, err)
				return
			}
			allowed = allowed || d.Allowed
			fmt.Println(client, "allowed:", d.Allowed, "left:", d.Remaining, "retry after:", d.RetryAfter.Round(time.Second))
		}
		if !allowed {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// header begins a file, and each further value is a client.
type (
	header struct{ SavedAt time.Time }
	client struct {
		Key   string
		Saved ratelimit.Saved
	}
)

// save writes the spending to a new file and puts that in place of the old one, so that a failure leaves the old one whole.
func save(limiter *ratelimit.Keyed[string], path string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	file := gob.NewEncoder(f)
	if err = file.Encode(header{SavedAt: time.Now()}); err != nil {
		return err
	}
	for key, saved := range limiter.Saved() {
		if err = file.Encode(client{key, saved}); err != nil {
			return err
		}
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// load restores the contents of the file. No file is no error.
func load(limiter *ratelimit.Keyed[string], path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	file := gob.NewDecoder(f)
	var h header
	if err := file.Decode(&h); err != nil {
		return err
	}
	elapsed := time.Since(h.SavedAt) // by the wall clock: a time from a file has no other
	var cut error
	restored := limiter.Restore(func(yield func(string, ratelimit.Saved) bool) {
		for {
			var c client
			if err := file.Decode(&c); err != nil {
				if !errors.Is(err, io.EOF) {
					cut = err // the file ends early, or is damaged from here on
				}
				return
			}
			if !yield(c.Key, c.Saved) {
				return
			}
		}
	}, elapsed)
	return errors.Join(restored, cut)
}
