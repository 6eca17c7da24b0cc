// Package mark has types by which this module's packages recognize
// each other's values. Other modules cannot name these types.
package mark

// Validated is the result type of a source's method Validated. A source with this
// method validates each set in Load, so policy need not validate the set again.
type Validated struct{}

// Switched is a source's error about a set. The source could nevertheless read the set's kill switch.
type Switched struct {
	On  bool
	Err error
}

func (s *Switched) Error() string { return s.Err.Error() }

// Unwrap returns Err.
func (s *Switched) Unwrap() error { return s.Err }
