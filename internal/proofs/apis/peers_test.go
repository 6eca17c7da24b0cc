package apis

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	"github.com/google/go-github/v84/github"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/weir-go/ratelimit/internal/dev/apis"
)

// retries is how often each client retries a request.
const retries = apis.Retries

// client is a way to send requests to an API with a limit.
type client struct {
	name string
	new  func(base http.RoundTripper) apis.Send
	only string // the only API that it is written for, or ""
}

// clients are this library's and those of others, with their defaults, except for the number of retries.
var clients = []client{
	{"`httplimit.Transport`", apis.Transport, ""},
	{"go-retryablehttp", retryable, ""},
	{"AWS SDK, `AdaptiveMode`", adaptive, ""},
	{"go-github, sleeps until the reset", sleeper, "GitHub"},
}

// retryable is go-retryablehttp's client, which obeys Retry-After.
func retryable(base http.RoundTripper) apis.Send {
	c := retryablehttp.NewClient()
	c.HTTPClient, c.Logger, c.RetryMax = &http.Client{Transport: base}, nil, retries
	return func(ctx context.Context) error {
		r, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, "http://api.example/", nil)
		if err != nil {
			return err
		}
		return apis.Served(c.Do(r))
	}
}

// adaptive sends as the AWS SDK's middleware does in adaptive mode: it takes a token for each attempt,
// and delays the next attempt. It does not use the mode's own wait for a token. That wait is sometimes
// rounded down to 0. Virtual time passes only while something waits, so it would stand still.
func adaptive(base http.RoundTripper) apis.Send {
	mode := retry.NewAdaptiveMode(func(o *retry.AdaptiveModeOptions) {
		o.FailOnNoAttemptTokens = true
		o.StandardOptions = append(o.StandardOptions, func(o *retry.StandardOptions) { o.MaxAttempts = 1 + retries })
	})
	attempt := func(ctx context.Context) error {
		release, err := mode.GetAttemptToken(ctx)
		for ; err != nil; release, err = mode.GetAttemptToken(ctx) {
			if err := sleep(ctx, 200*time.Millisecond); err != nil {
				return err
			}
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example/", nil)
		if err != nil {
			return err
		}
		resp, err := base.RoundTrip(r)
		if err == nil {
			_ = resp.Body.Close()
			switch resp.StatusCode {
			case http.StatusTooManyRequests:
				err = &smithy.GenericAPIError{Code: "TooManyRequestsException"}
			case http.StatusInternalServerError:
				err = &smithy.GenericAPIError{Code: "InternalFailure", Fault: smithy.FaultServer}
			}
		}
		return errors.Join(err, release(err))
	}
	return func(ctx context.Context) error {
		for n := 1; ; n++ {
			err := attempt(ctx)
			if err == nil || n == mode.MaxAttempts() || !mode.IsErrorRetryable(err) {
				return err
			}
			release, tokenErr := mode.GetRetryToken(ctx, err)
			if tokenErr != nil {
				return tokenErr // the budget of retries is used up
			}
			delay, delayErr := mode.RetryDelay(n, err)
			if delayErr != nil {
				return delayErr
			}
			if err := sleep(ctx, delay); err != nil {
				return err
			}
			_ = release(nil)
		}
	}
}

// sleeper is the loop recommended by go-github's documentation. It
// sleeps until the reset, or as long as the secondary limit demands.
func sleeper(base http.RoundTripper) apis.Send {
	c := github.NewClient(&http.Client{Transport: base})
	return func(ctx context.Context) error {
		for n := 0; ; n++ {
			r, err := c.NewRequest(http.MethodGet, "octocat", nil)
			if err != nil {
				return err
			}
			_, err = c.Do(ctx, r, nil)
			var wait time.Duration
			if limit := new(github.RateLimitError); errors.As(err, &limit) {
				wait = time.Until(limit.Rate.Reset.Time)
			} else if abuse := new(github.AbuseRateLimitError); errors.As(err, &abuse) {
				wait = abuse.GetRetryAfter()
			} else {
				return err
			}
			if n == retries {
				return err
			}
			if err := sleep(ctx, wait); err != nil {
				return err
			}
		}
	}
}

// sleep sleeps until d is over or the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
