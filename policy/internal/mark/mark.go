// Package mark has types with which packages of this module recognize
// each other's values. Other modules cannot name these types.
package mark

// Validated is the result type of a source's method. With this method, the
// source's Load validates each set, so it need not be validated again.
type Validated struct{}

// Switched is a source's error about a set whose kill switch could be read nevertheless.
type Switched struct {
	On  bool
	Err error
}

func (s *Switched) Error() string { return s.Err.Error() }

// Unwrap returns Err.
func (s *Switched) Unwrap() error { return s.Err }
