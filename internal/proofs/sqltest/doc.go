// Package sqltest tests the packages policy and sqllimit on real databases: on SQLite, and on PostgreSQL and MariaDB
// servers that it starts. It is in this module so that users of those packages need not require the drivers.
package sqltest
