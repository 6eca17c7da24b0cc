package optional

import "fmt"

// Nil returns the error about an argument or an option that must not be nil. The name consists of
// the package, and of the function with its parameter or the option: "lease: New: remoteLimiter".
func Nil(name string) error { return fmt.Errorf("%s is nil", name) }

// NilInside returns an error if an interface holds a nil pointer, because the first call
// through it would panic. It returns nil for all other values, including a nil interface.
func NilInside(name string, x any) error {
	if x == nil || !IsNil(x) {
		return nil
	}
	return fmt.Errorf("%s holds a nil %T: give nil itself for none", name, x)
}

// NotNegative returns an error for a number or a time below 0. The text zero describes
// the meaning of 0, such as "the default". If it is empty, 0 has no special meaning.
func NotNegative[T ~int | ~int64](name string, v T, zero string) error {
	switch {
	case v >= 0:
		return nil
	case zero == "":
		return fmt.Errorf("%s is %v, want 0 or more", name, v)
	}
	return fmt.Errorf("%s is %v, want 0 for %s, or more", name, v, zero)
}

// AtLeastOne returns an error for a number below 1.
func AtLeastOne(name string, v int) error {
	if v >= 1 {
		return nil
	}
	return fmt.Errorf("%s is %d, want at least 1", name, v)
}

// Within returns an error for a number below 0 or above most. The text zero describes the meaning of 0, such as "the default".
func Within(name string, v, most int, zero string) error {
	if 0 <= v && v <= most {
		return nil
	}
	return fmt.Errorf("%s is %d, want 1 to %d, or 0 for %s", name, v, most, zero)
}

// Constant returns an error for a number above the last constant of a type. The text names lists the constants.
func Constant[T ~uint8](name string, v, last T, names string) error {
	if v <= last {
		return nil
	}
	return fmt.Errorf("%s is %d, want %s", name, uint8(v), names)
}

// Zero returns the error of a method whose receiver is nil or zero, because no constructor
// made it. Methods without an error panic with it. The text has no prefix if pkg is empty.
func Zero(pkg, name, constructor string) error {
	if pkg == "" {
		return fmt.Errorf("this %s is nil or zero: make one with %s", name, constructor)
	}
	return fmt.Errorf("%s: this %s is nil or zero: make one with %s", pkg, name, constructor)
}
