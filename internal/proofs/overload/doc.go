// Package overload plays the grid of internal/dev/overload with the adaptive limits of this library and of other Go libraries,
// in one run and by one judge:
//
//	go test ./overload -run Grid -cells 200 -first 50001 -v -timeout 0
package overload
