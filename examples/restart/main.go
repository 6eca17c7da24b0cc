// Restart keeps spending over a restart. Each of two clients sends a request every 100
// ms, under a limit of 20 an hour. On SIGTERM or an interrupt the program stops, writes
// each client's spending to a file, and ends. The next run reads the file and continues:
//
//	go run ./examples/restart     # stop it with Ctrl-C
//	go run ./examples/restart     # goes on
//
// The wall clock measures the time between two runs. If it is set back in between, too little time seems to have passed,
// or none, and a client waits longer than necessary. If it is set forward, clients regain the step's budget without
// waiting. If a program is killed, or its machine stops, it writes nothing. The next run then reads the file from
// before, if there is one, and the spending since is lost. If this matters, keep the budgets on Redis or in a database.
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
		// Everything that could be read is restored. It is better to start than to fail.
		fmt.Fprintln(os.Stderr, "not all could be restored:", err)
	}
	spend(ctx, limiter)
	// The traffic has stopped, because later spending would not be in the file.
	if err := save(limiter, path); err != nil {
		return err
	}
	fmt.Println("saved")
	return nil
}

// spend is the service. It ends when the context ends, or when no budget is left.
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

// A file contains a header, and then a value for each client.
type (
	header struct{ SavedAt time.Time }
	client struct {
		Key   string
		Saved ratelimit.Saved
	}
)

// save writes the spending to a new file, which then replaces the old one. So after a failure the old file is complete.
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

// load restores the file's contents. A missing file is no error.
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
	elapsed := time.Since(h.SavedAt) // by the wall clock, because a time from a file has no monotonic reading
	var cut error
	restored := limiter.Restore(func(yield func(string, ratelimit.Saved) bool) {
		for {
			var c client
			if err := file.Decode(&c); err != nil {
				if !errors.Is(err, io.EOF) {
					cut = err // the file ends early or is damaged from here on
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
