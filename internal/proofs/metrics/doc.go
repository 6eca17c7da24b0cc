// Package metrics runs one limiter of each kind, and checks the metrics that promlimit and otellimit
// export. It is in this module because those packages do not require each other's modules.
package metrics
