package optional

import "fmt"

// Nil is the error of a function for an argument or an option that must not be nil. The name begins with the package, and has the function
// and its parameter, or the option: "lease: New: remoteLimiter".
func Nil(name string) error { return fmt.Errorf("%s is nil", name) }

// NilInside is the error for an interface that may be nil, and holds a nil pointer instead: the first call through it would panic. It is
// nil for all other values.
func NilInside(name string, x any) error {
	if x == nil || !IsNil(x) {
		return nil
	}
	return fmt.Errorf("%s holds a nil %T: give nil itself for none", name, x)
}

// NotNegative returns an error for a number or a time below 0. The argument zero says what 0 means, such as "the default"; if empty, 0 is a
// value as any other.
func NotNegative[T ~int | ~int64](name string, v T, zero string) error {
	switch {
	case v >= 0:
		return nil
	case zero == "":
		return fmt.Errorf("%s is %v, want 0 or more", name, v)
	}
	return fmt.Errorf("%s is %v, want 0 for %s, or more", name, v, zero)
}

// Zero is the error of a method whose receiver is nil or zero, so that no constructor made it. Methods without an error panic with it. Its
// text has no prefix if pkg is empty.
func Zero(pkg, name, constructor string) error {
	if pkg == "" {
		return fmt.Errorf("this %s is nil or zero: make one with %s", name, constructor)
	}
	return fmt.Errorf("%s: this %s is nil or zero: make one with %s", pkg, name, constructor)
}
