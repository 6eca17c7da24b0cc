// Package sqllimit keeps budgets in a table of a PostgreSQL, MySQL or MariaDB database, for quotas
// that are billed and must not be lost. It is what package ratelimit is, for any number of
// processes: the same limits, the same answers and the same errors.
//
//	limit := ratelimit.Calendar(100_000, ratelimit.Month("UTC", 1)).Named("calls")
//	limiter, err := sqllimit.New(db, limit, nil)
//	…
//	d, err := limiter.Take(ctx, "customer-42", 1)
//
// Create the table with [Schema]. The package imports no driver: open db with the one of your
// database. The account needs the rights to select, insert, update and delete rows of the table.
//
// # What is promised
//
// All that the documentation of package ratelimit says about answers holds, with 1 µs in the
// place of 1 ns: the database tells the time, and a calendar's windows are those of its clock.
//
//   - The limit holds exactly over all processes.
//   - A denial, a Peek and an error write nothing. There is one exception: a denial may lock the row, and so write
//     to the log, if the budget was there when it was read and another process has spent it since.
//   - A call is charged once, or not at all. If its write was sent and not answered, the error wraps
//     [ratelimit.ErrUnanswered]. It is not repeated.
//   - What was answered is committed. What a server keeps that is killed is up to its own settings.
//   - If the database's clock steps back, nothing is granted: a key waits until the clock has caught up, or
//     for [Limiter.Reset].
//   - Rows of keys that are fresh again are deleted, by limiters of the same Name, when they write.
//
// # After a change of limit
//
// [Limiter.SetLimit] writes nothing. A key comes under the new limit as of the limiter's first
// decision under it, or as of its own last change if that is later; under a limit of
// [Options.LimitFor], as of its last change. To settle what was reserved before gives back what
// it would have given back then.
package sqllimit
