package sqllimit

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Dialect selects a database's SQL.
type Dialect uint8

// MySQL is for MariaDB 10.6 or later; MySQL 8 is untested.
const (
	PostgreSQL Dialect = iota
	MySQL

	dialects
)

// Schema returns the statements to create a table and its index, for your migrations; ""
// means rate_limit. It returns "" for an invalid name, see [Options.Table], or dialect.
func Schema(dialect Dialect, table string) string {
	if table == "" {
		table = defaultTable
	}
	if !tableName.MatchString(table) {
		return ""
	}
	index := table[strings.LastIndexByte(table, '.')+1:] + "_expires"
	switch dialect {
	case PostgreSQL:
		return fmt.Sprintf(`CREATE TABLE %s (
	key     bytea  PRIMARY KEY,
	at      bigint NOT NULL,
	state   bytea  NOT NULL,
	expires bigint NOT NULL
);
CREATE INDEX %s ON %[1]s (expires);
`, table, index)
	case MySQL:
		return fmt.Sprintf("CREATE TABLE %s (\n\t`key`     varbinary(1280) NOT NULL PRIMARY KEY,\n\tat        bigint NOT NULL,\n"+
			"\tstate     mediumblob NOT NULL,\n\texpires   bigint NOT NULL,\n\tINDEX %s (expires)\n) ENGINE=InnoDB;\n", table, index)
	}
	return ""
}

// statements are the statements on one table, with their arguments in order.
type statements struct {
	read   string // key: the clock; at, state and expires of the row
	lock   string // key: returns what read returns, and locks the row; returns nothing if there is no row
	insert string // key, at, state, expires: writes nothing if the row exists
	update string // at, state, expires; key, at and state of the row
	both   string // as update, then key, at, state, expires of a row, inserted only if the update succeeds; "" if both need a transaction
	reset  string // key, state, how long the row stays; it replaces any row

	due      string // until, first key, end: the clock; key, at and state of rows; the rows are locked
	postpone string // expires, key
	remove   string // keys, appended

	page string // first key, end: the clock; key, at and state of rows in their keys' order
}

const (
	sweepRows = 100
	pageRows  = 1000
)

func (d Dialect) statements(table string) statements {
	words := map[string]string{
		"TABLE": table, "KEY": "key", "SWEEP": strconv.Itoa(sweepRows), "PAGE": strconv.Itoa(pageRows),
		"NOW":     "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
		"NOTHING": " ON CONFLICT (key) DO NOTHING",
		"REPLACE": " ON CONFLICT (key) DO UPDATE SET at = excluded.at, state = excluded.state, expires = excluded.expires",
	}
	words["READ"] = words["NOW"]
	if d == MySQL {
		words["KEY"] = "`key`"
		words["NOW"] = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))" // in every time zone of the session
		words["READ"] = "IF(@@autocommit, " + words["NOW"] + ", NULL)"              // without autocommit a decision would never be committed
		words["NOTHING"] = ""                                                       // an existing key is an error; INSERT IGNORE would also shorten a too long key
		words["REPLACE"] = " ON DUPLICATE KEY UPDATE at = VALUES(at), state = VALUES(state), expires = VALUES(expires)"
	}
	in := func(text string) string {
		return regexp.MustCompile(`\{([A-Z]+)\}|\$\d`).ReplaceAllStringFunc(text, func(w string) string {
			if w[0] == '{' {
				return words[w[1:len(w)-1]]
			}
			if d == MySQL {
				return "?"
			}
			return w
		})
	}
	both := ""
	if d == PostgreSQL {
		both = in("WITH updated AS (UPDATE {TABLE} SET at = $1, state = $2, expires = $3 WHERE {KEY} = $4 AND at = $5 AND state = $6 RETURNING 1) " +
			"INSERT INTO {TABLE} ({KEY}, at, state, expires) SELECT $7::bytea, $8::bigint, $9::bytea, $10::bigint FROM updated")
	}
	return statements{
		both:     both,
		read:     in("SELECT {READ}, r.at, r.state, r.expires FROM (SELECT 1) AS one LEFT JOIN {TABLE} AS r ON r.{KEY} = $1"),
		lock:     in("SELECT {NOW}, at, state, expires FROM {TABLE} WHERE {KEY} = $1 FOR UPDATE"),
		insert:   in("INSERT INTO {TABLE} ({KEY}, at, state, expires) VALUES ($1, $2, $3, $4){NOTHING}"),
		update:   in("UPDATE {TABLE} SET at = $1, state = $2, expires = $3 WHERE {KEY} = $4 AND at = $5 AND state = $6"),
		reset:    in("INSERT INTO {TABLE} ({KEY}, at, state, expires) VALUES ($1, {NOW}, $2, {NOW} + $3){REPLACE}"),
		due:      in("SELECT {NOW}, {KEY}, at, state FROM {TABLE} WHERE expires <= $1 AND {KEY} >= $2 AND {KEY} < $3 LIMIT {SWEEP} FOR UPDATE SKIP LOCKED"),
		postpone: in("UPDATE {TABLE} SET expires = $1 WHERE {KEY} = $2"),
		remove:   in("DELETE FROM {TABLE} WHERE {KEY} IN "),
		page:     in("SELECT {READ}, {KEY}, at, state FROM {TABLE} WHERE {KEY} >= $1 AND {KEY} < $2 ORDER BY {KEY} LIMIT {PAGE}"),
	}
}

// list returns a list's placeholders.
func (d Dialect) list(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString([...]string{"(", ", "}[min(i, 1)])
		if d == MySQL {
			b.WriteByte('?')
		} else {
			b.WriteString("$" + strconv.Itoa(i+1))
		}
	}
	return b.String() + ")"
}
