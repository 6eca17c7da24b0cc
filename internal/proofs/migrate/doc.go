// Package migrate tests what docs/migrate.md says: the calls of other libraries beside ours, on the
// same requests at the same times, and where the two differ. Each test runs both sides, theirs in the version
// that go.mod names.
package migrate
