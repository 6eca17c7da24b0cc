package main

import "strings"

// The other rows are compared with grpcBase.
const grpcBase = "go-grpc-middleware-address"

func grpcReport(r results) string {
	var speed, allocs, denials, denialAllocs table
	speed.add(r, "GRPC", "ns/op", "peer")
	allocs.add(r, "GRPC", "allocs/op", "peer")
	denials.add(r, "GRPCDenial", "ns/op", "peer")
	denialAllocs.add(r, "GRPCDenial", "allocs/op", "peer")
	return strings.Join([]string{
		r.heading("Interceptors of gRPC servers"),
		"An allowed unary call, ns: the interceptor alone, and the whole call over the loopback interface:\n", speed.medians(),
		"As multiples of " + grpcBase + "'s:\n", speed.ratios(grpcBase),
		"Allocations:\n", allocs.medians(),
		"A denied unary call, ns:\n", denials.medians(),
		"Allocations:\n", denialAllocs.medians(),
	}, "\n")
}
