// Package mark has types by which packages of this module recognize each other's values. No other module can name them.
package mark

// Validated is the result of a method of sources whose Load validates each set, so that it need not be validated again.
type Validated struct{}
