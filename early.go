package ratelimit

import "sync"

// early lists keys that may be fresh earlier than was known: something that they had
// spent was given back, or their limit has changed. A table that refuses new keys looks
// at them before it does. It holds accounts without knowing them, because plans refer to it.
//
// Its lock comes after all others.
type early struct {
	mu       sync.Mutex
	accounts []any
}

func (e *early) add(account any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.accounts = append(e.accounts, account)
}

// take removes all that are listed and returns them.
func (e *early) take() []any {
	e.mu.Lock()
	defer e.mu.Unlock()
	accounts := e.accounts
	e.accounts = nil
	return accounts
}
