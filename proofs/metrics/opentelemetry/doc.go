// Package opentelemetry runs one limiter of each kind, and checks what otellimit exports of them. It is
// here because otellimit itself requires none of their modules.
package opentelemetry
