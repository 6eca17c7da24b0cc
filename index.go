package ratelimit

import (
	"hash/maphash"

	"github.com/weir-go/ratelimit/internal/keys"
)

// index finds accounts by key.
type index[K comparable] struct {
	accounts keys.Map[K, *account]
}

func newIndex[K comparable](maxKeys int) index[K] { return index[K]{keys.NewMap[K, *account](maxKeys)} }

func (x *index[K]) find(key K) *account { return x.accounts.Find(key) }

func (x *index[K]) add(key K, a *account) { x.accounts.Add(key, a) }

func (x *index[K]) remove(key K) { x.accounts.Remove(key) }

func (x *index[K]) hash(seed maphash.Seed, key K) uint64 { return x.accounts.Hash(seed, key) }
