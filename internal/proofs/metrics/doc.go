// Package metrics runs one limiter of each kind, and checks the metrics that promlimit and otellimit export. It is here because
// these packages do not require each other's modules.
package metrics
