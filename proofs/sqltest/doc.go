// Package sqltest tests package policy on real databases: a PostgreSQL server that the tests
// start, and SQLite. It is in this module so that nobody who uses policies has to
// require the drivers.
package sqltest
