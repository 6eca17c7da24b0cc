// Package migrate tests the statements of docs/migrate.md. It makes calls to other libraries and the same calls to this
// library at the same times, and checks where the results differ. The other libraries have the versions in go.mod.
package migrate
