// Package proc does to processes what only Unix can, for tests that start servers. Elsewhere its functions fail with
// errors.ErrUnsupported, so that these tests compile.
package proc
