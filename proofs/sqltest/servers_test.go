package sqltest

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/weir-go/ratelimit/internal/proc"
	"github.com/weir-go/ratelimit/policy"
)

// database is one that a test may use.
type database struct {
	dialect policy.Dialect
	open    func(t testing.TB) *sql.DB
}

// databases are those that the tests run on.
func databases() map[string]database {
	return map[string]database{
		"postgresql": {policy.PostgreSQL, func(t testing.TB) *sql.DB { return startPostgres(t).open(t) }},
		"sqlite":     {policy.SQLite, openSQLite},
	}
}

// migrated returns a database with the tables in it.
func (d database) migrated(t testing.TB) *sql.DB {
	t.Helper()
	db := d.open(t)
	_, err := db.Exec(d.dialect.Migration())
	require.NoError(t, err)
	return db
}

func openSQLite(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "rules.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// postgres is a PostgreSQL server that a test has started. It listens on a socket in a folder
// of its own.
type postgres struct {
	bin, dir, options string
}

// startPostgres starts a server, and stops it with the test. Where there is none, the test is
// skipped; in CI it fails.
func startPostgres(t testing.TB) *postgres {
	t.Helper()
	return startPostgresWith(t, "-c fsync=off")
}

// startPostgresWith is startPostgres with options of the server.
func startPostgresWith(t testing.TB, options string) *postgres {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if path, err := exec.LookPath("initdb"); err == nil {
		found = append(found, path)
	}
	if len(found) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("PostgreSQL is not installed")
		}
		t.Skip("PostgreSQL is not installed: install the package postgresql to run this")
	}
	dir, err := os.MkdirTemp("", "pg") // short, for the socket's path
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &postgres{bin: filepath.Dir(found[0]), dir: dir, options: options}
	if os.Geteuid() == 0 {
		uid, gid := p.account(t)
		require.NoError(t, os.Chown(dir, uid, gid))
	}
	p.run(t, "initdb", "-D", p.data(), "-U", "test", "-A", "trust", "-N", "-E", "UTF8")
	p.start(t)
	t.Cleanup(func() { p.stop(t) })
	return p
}

func (p *postgres) data() string { return filepath.Join(p.dir, "data") }

// account returns the user that the server runs as where we are root: it refuses root.
func (p *postgres) account(t testing.TB) (uid, gid int) {
	t.Helper()
	u, err := user.Lookup("postgres")
	require.NoError(t, err)
	uid, err = strconv.Atoi(u.Uid)
	require.NoError(t, err)
	gid, err = strconv.Atoi(u.Gid)
	require.NoError(t, err)
	return uid, gid
}

func (p *postgres) run(t testing.TB, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir = p.dir
	if os.Geteuid() == 0 {
		uid, gid := p.account(t)
		require.NoError(t, proc.RunAs(cmd, uid, gid))
	}
	out, err := os.Create(filepath.Join(p.dir, program+".out"))
	require.NoError(t, err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		log, _ := os.ReadFile(filepath.Join(p.dir, "log"))
		t.Fatalf("%s: %v\n%s\n%s", program, err, text, log)
	}
}

func (p *postgres) start(t testing.TB) {
	t.Helper()
	p.run(t, "pg_ctl", "-D", p.data(), "-w", "-t", "60", "-l", filepath.Join(p.dir, "log"),
		"-o", fmt.Sprintf("-k %s -h '' %s", p.dir, p.options), "start")
}

// stop kills the server as a crash would.
func (p *postgres) stop(t testing.TB) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(p.data(), "postmaster.pid")); err == nil {
		p.run(t, "pg_ctl", "-D", p.data(), "-w", "-t", "60", "-m", "immediate", "stop")
	}
}

func (p *postgres) open(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", fmt.Sprintf("host=%s user=test dbname=postgres connect_timeout=2", p.dir))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
