// Package metrics runs one limiter of each kind, and checks what promlimit and otellimit export of them. It is
// here because they themselves require none of their modules.
package metrics
