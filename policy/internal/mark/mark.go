// Package mark has types by which packages of this module recognize each other's values. No other module can name them.
package mark

// Validated is the result of a method of sources whose Load validates each set, so that it need not be validated again.
type Validated struct{}

// Switched is an error of a source about a set whose kill switch could be read all the same.
type Switched struct {
	On  bool
	Err error
}

func (s *Switched) Error() string { return s.Err.Error() }

// Unwrap returns Err.
func (s *Switched) Unwrap() error { return s.Err }
