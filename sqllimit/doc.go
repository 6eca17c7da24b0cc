// Package sqllimit keeps budgets in a PostgreSQL or MariaDB table, shared
// by all processes: for quotas that are billed and must not be lost.
//
//	limit := ratelimit.Calendar(100_000, ratelimit.Month("UTC", 1)).Named("calls")
//	limiter, err := sqllimit.New(db, limit, nil)
//	…
//	d, err := limiter.Take(ctx, "customer-42", 1)
//
// [Schema] returns the statements to create the table. The package imports no driver.
// The account must be allowed to select, insert, update and delete the table's rows.
//
// Only the database's clock is read, to 1 µs, even for calendars. If the clock steps back, time stands still for a
// key until the key's last reading comes again. Package ratelimit's other promises hold over all processes. A call
// is charged once or not at all. If the answer to a write is lost, the error wraps [ratelimit.ErrUnanswered].
package sqllimit
