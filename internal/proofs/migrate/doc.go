// Package migrate tests the statements in docs/migrate.md. It makes the same calls to other libraries and to this
// one, at the same times, and checks where the results differ. The other libraries have the versions in go.mod.
package migrate
