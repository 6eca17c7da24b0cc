package sqllimit

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/weir-go/ratelimit/internal/outcome"
)

// inText is how go-sql-driver/mysql writes an error's number and SQLSTATE.
var inText = regexp.MustCompile(`^Error (\d+) \(([0-9A-Z]{5})\)`)

// MySQL's specially treated errors, by number.
const (
	duplicateKey    = "1062"
	statementLogged = "1665" // READ COMMITTED while binlog_format is STATEMENT
)

// mysqlCode returns the number of a MySQL server's error, or "" for any other error.
func mysqlCode(err error) string {
	number, _ := mysqlError(err)
	return number
}

func mysqlError(err error) (number, state string) {
	for ; err != nil; err = errors.Unwrap(err) {
		if m := inText.FindStringSubmatch(err.Error()); m != nil {
			return m[1], m[2]
		}
	}
	return "", ""
}

// sqlState returns the SQLSTATE of an error from the database, or "" for any other error.
func sqlState(err error) string {
	var answer interface{ SQLState() string } // the errors of pgx and lib/pq have it
	if errors.As(err, &answer) {
		return answer.SQLState()
	}
	_, state := mysqlError(err)
	return state
}

// notDone reports whether a statement's error proves that the statement has had no effect: the database has
// reported this, or nothing was sent. When a server shuts down, it may report an error after it has committed.
func notDone(err error) bool {
	state := sqlState(err)
	return state != "" && !strings.HasPrefix(state, "57P") && !strings.HasPrefix(state, "08") || errors.Is(err, driver.ErrBadConn)
}

// conflict reports whether a statement failed because another transaction changed the row. It may be repeated.
func conflict(err error) bool {
	switch sqlState(err) {
	case "40001", "40P01": // serialization failure, deadlock
		return true
	}
	return false
}

// mistakes are the classes of SQLSTATE that only a change of a program or the schema ends. Other errors are temporary.
var mistakes = map[string]bool{"0A": true, "22": true, "23": true, "3F": true, "42": true}

// advice returns the remedy if the database refuses the connection's user, password, database
// or rights, and "" for any other error. Such a refusal is not a decision. Rights change while
// a program runs, for example when a password is replaced, and a stand-in may decide meanwhile.
func (s *store) advice(err error) string {
	const noDatabase = "check the database's name in the connection string"
	switch mysqlCode(err) {
	case "1142", "1143", "1227", "1370": // a command, a column, a global right or a function is denied
		return s.rights()
	case "1044": // the user has no right on the database
		return s.rights() + ", or " + noDatabase
	case "1049":
		return noDatabase
	}
	switch state := sqlState(err); {
	case state == "42501":
		return s.rights()
	case strings.HasPrefix(state, "28"):
		return "check user and password in the connection string, and the hosts from which the database lets the user in"
	case strings.HasPrefix(state, "3D"):
		return noDatabase
	}
	return ""
}

// rights is the advice about a missing right.
func (s *store) rights() string {
	return "the user needs SELECT, INSERT, UPDATE and DELETE on table " + s.table
}

// classify returns a database's error for a caller.
func (s *store) classify(err error, sent bool) error {
	if hopeless(err) {
		return fmt.Errorf("sqllimit: table %s: %w", s.table, err)
	}
	if mysqlCode(err) == statementLogged {
		return fmt.Errorf("sqllimit: table %s: binlog_format is STATEMENT and the connection's isolation READ COMMITTED, want one of them otherwise: %w", s.table, err)
	}
	if advice := s.advice(err); advice != "" {
		return &outcome.Undecided{Cause: fmt.Errorf("%w (%s)", err, advice), Sent: sent}
	}
	if state := sqlState(err); len(state) == 5 && mistakes[state[:2]] {
		return fmt.Errorf("sqllimit: table %s, which Schema describes: %w", s.table, err)
	}
	return &outcome.Undecided{Cause: err, Sent: sent}
}
