package merge

// Source holds the limiter and the key function of a layer. Only the layer's own package can read them.
// A layer embeds Source under an unexported name, so other modules can neither see nor call its method.
type Source struct{ value any }

// Sourced is a pointer to a layer that embeds a [Source].
type Sourced interface{ source() *Source }

func (s *Source) source() *Source { return s }

// SetSource sets a layer's source. An earlier copy of the layer keeps its own source.
func SetSource(layer Sourced, value any) { layer.source().value = value }

// SourceOf returns a layer's source if its type is S. Each package has its own type S for each type of requests.
func SourceOf[S any](layer Sourced) (S, bool) {
	s, ok := layer.source().value.(S)
	return s, ok
}
