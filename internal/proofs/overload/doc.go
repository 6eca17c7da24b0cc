// Package overload plays the grid of internal/dev/overload with adaptive limits from
// this library and other Go libraries. All are measured in one run and in the same way:
//
//	go test ./overload -run Grid -cells 200 -first 50001 -v -timeout 0
package overload
