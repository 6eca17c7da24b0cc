// Package sqltest tests the packages policy and sqllimit on real databases: PostgreSQL and MariaDB servers that the tests start,
// and SQLite. It is in this module so that their users need not require the drivers.
package sqltest
