// Package readme compiles and runs code from README files that needs
// other modules, for example Redis, a router or a registry of metrics.
package readme
