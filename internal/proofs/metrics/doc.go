// Package metrics runs one limiter of each kind, and checks the metrics exported by promlimit and
// otellimit. It is in this module because those packages do not require each other's modules.
package metrics
