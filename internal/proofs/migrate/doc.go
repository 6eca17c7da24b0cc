// Package migrate tests the statements of docs/migrate.md: the calls of other libraries beside ours, on the same requests at
// the same times, and where the two differ. Each test runs both sides, the other library in the version that go.mod names.
package migrate
