package model

import "testing"

// FuzzLimiter reads its input as a limit and a history of calls, and compares the limiter with the model.
func FuzzLimiter(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seeded(5<<32|seed, 60))
	}
	f.Fuzz(func(t *testing.T, data []byte) { runScript(t, data, 60) })
}
