// Package readme compiles and runs the code in the README files of packages whose example needs
// another module: a Redis, a router, a registry of metrics.
package readme
