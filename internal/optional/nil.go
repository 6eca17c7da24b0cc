package optional

import "reflect"

// IsNil reports whether an interface holds nothing, a nil pointer or a nil function. Other
// kinds of nil, such as a nil map, may have working methods.
func IsNil(x any) bool {
	v := reflect.ValueOf(x)
	switch v.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func:
		return v.IsNil()
	}
	return false
}
