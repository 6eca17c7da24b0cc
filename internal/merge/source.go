package merge

// Source is the part of a layer that only the package reads that made the layer: the limiter and the key function. Embedded
// under an unexported name, it gives the layer a method that other modules can neither see nor call.
type Source struct{ value any }

// Sourced is a pointer to a layer that embeds a [Source].
type Sourced interface{ source() *Source }

func (s *Source) source() *Source { return s }

// SetSource sets a layer's source. A copy of the layer that was made before keeps its own.
func SetSource(layer Sourced, value any) { layer.source().value = value }

// SourceOf returns a layer's source if it has the type S, as the layers of one package and one type of requests have.
func SourceOf[S any](layer Sourced) (S, bool) {
	s, ok := layer.source().value.(S)
	return s, ok
}
