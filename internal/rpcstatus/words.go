package rpcstatus

// Words are the texts in answers to HTTP requests, or to calls over
// gRPC and Connect. They contain no part of a key or an error's text.
type Words struct {
	BadKey string // the key is missing or malformed

	// A retry can never pass.
	Blocked  string // the request is blocked, by ratelimit.Blocked or by an in-flight limit of 0
	Exceeds  string // the cost is above the limit's capacity
	TooLarge string // the request takes more units than an in-flight limit has
}

// The words for requests, and the words for calls.
var (
	Calls = Words{
		BadKey:   "the key that calls are limited by is missing or malformed",
		Blocked:  "the key is blocked: do not retry",
		Exceeds:  "the call costs more than its limit ever allows: do not retry",
		TooLarge: "the call needs more than there ever is: do not retry",
	}
	Requests = Words{
		BadKey:   "The key that requests are limited by is missing or malformed.",
		Blocked:  "The key is blocked. Do not retry the request.",
		Exceeds:  "The request costs more than its quota ever holds. Do not retry it.",
		TooLarge: "The request needs more than there ever is. Do not retry it.",
	}
)
