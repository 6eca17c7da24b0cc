// Package apis plays hours of clients under the limits of public APIs, in
// virtual time. It compares this library's Transport with other Go clients.
//
//	go -C internal/proofs test ./apis -run Hours -v -all -timeout 0 # every event, too: a minute
//	go -C internal/proofs test ./apis -run Peers -v -all -timeout 0 # the table of README.md
package apis
