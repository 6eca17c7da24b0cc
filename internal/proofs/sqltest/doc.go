// Package sqltest tests the packages policy and sqllimit on real databases: on SQLite, and on its own PostgreSQL
// and MariaDB servers. It is in this module because users of the two packages need not require the drivers.
package sqltest
