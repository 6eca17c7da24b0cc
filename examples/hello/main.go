// Hello is the program of README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/weir-go/ratelimit"
)

func main() {
	limiter, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 3), nil)
	if err != nil {
		log.Fatal(err)
	}
	for range 4 {
		fmt.Println(limiter.Allow("user:42", 1)) // prints true three times, and then false
	}

	d, err := limiter.Take(context.Background(), "user:42", 2)
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		fmt.Println("never:", err) // the answer to a cost above 3
	case err != nil:
		fmt.Println("cannot decide:", err)
	case d.Allowed:
		fmt.Println("yes:", d.Remaining, "left")
	default:
		fmt.Println("not yet: retry after", d.RetryAfter) // the answer to this cost
	}
}
