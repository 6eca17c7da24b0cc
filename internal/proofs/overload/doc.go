// Package overload plays the grid of internal/dev/overload with this library's and
// other Go libraries' adaptive limits. All are measured in one run and in the same way:
//
//	go test ./overload -run Grid -cells 200 -first 50001 -v -timeout 0
package overload
