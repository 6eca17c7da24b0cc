// Package answers lets a request take the answers of all layers of a stack itself. That is what package policy
// does: it takes half the time of an observer on each layer.
package answers

// Taker is what a request of a stack that AllOf has made may be. D is the Decision of package ratelimit.
type Taker[D any] interface {
	// WantsAnswers reports whether the request takes the answers of a decision that allowed it, or denied it. It is
	// called under locks, so it must be quick and call nothing else.
	WantsAnswers(allowed bool) bool

	// TakeAnswer gets the answer of a layer that applies, whether the layer was charged, and why it or the whole
	// decision has failed. It is called after the decision, under no lock, as an observer is. It must not keep d.
	TakeAnswer(layer int, d *D, spent bool, err error)
}
