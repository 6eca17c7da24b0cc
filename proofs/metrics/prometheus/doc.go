// Package prometheus runs one limiter of each kind, and checks what promlimit exports of them. It is
// here because promlimit itself requires none of their modules.
package prometheus
