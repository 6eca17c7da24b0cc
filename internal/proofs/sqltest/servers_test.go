package sqltest

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"
	_ "github.com/ncruces/go-sqlite3/embed"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/proc"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy/sqlsource"
	"github.com/weir-go/ratelimit/sqllimit"
)

// database is a kind of database for tests.
type database struct {
	dialect sqllimit.Dialect
	open    func(t testing.TB) *sql.DB
}

// databases returns all kinds of databases, by name.
func databases() map[string]database {
	return map[string]database{
		"postgresql": {sqllimit.PostgreSQL, openPostgres},
		"mysql":      {sqllimit.MySQL, openMariaDB},
		"sqlite":     {sqlsource.SQLite, openSQLite},
	}
}

// migrated returns a database with the tables in it.
func (d database) migrated(t testing.TB) *sql.DB {
	t.Helper()
	db := d.open(t)
	migrate(t, db, d.dialect)
	return db
}

// migrate creates the tables with one statement at a time.
func migrate(t testing.TB, db *sql.DB, dialect sqllimit.Dialect) {
	t.Helper()
	for _, statement := range sqlsource.Migration(dialect) {
		_, err := db.Exec(statement)
		require.NoError(t, err, statement)
	}
}

// sql translates a statement from PostgreSQL's dialect to the database's.
func (d database) sql(statement string) string {
	if d.dialect != sqllimit.MySQL {
		return statement
	}
	names := strings.NewReplacer(`"limit"`, "`limit`", `"user"`, "`user`", " key", " `key`", "(key", "(`key`")
	parts := strings.Split(statement, "'")
	for i := 0; i < len(parts); i += 2 { // the parts between are quoted texts
		parts[i] = regexp.MustCompile(`\$\d`).ReplaceAllString(names.Replace(parts[i]), "?")
	}
	return strings.Join(parts, "'")
}

func openSQLite(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(t.TempDir(), "rules.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, db.Ping(), "the first connection compiles SQLite, which may take longer than the timeout of what is tested")
	return db
}

// postgres is a PostgreSQL server started by a test. It listens on a socket in its own folder.
type postgres struct {
	bin, dir, options string
}

// sharedPostgres is the server for tests that need only a database.
var sharedPostgres struct {
	sync.Mutex
	*postgres
	databases int
}

// lasting is a test whose cleanup functions run after all tests.
type lasting struct{ testing.TB }

func (lasting) Cleanup(f func()) { atEnd(f) }

// openPostgres opens a new database on the shared server. A test starts its
// own server if it stops the server, or reads everything written by it.
func openPostgres(t testing.TB) *sql.DB {
	t.Helper()
	sharedPostgres.Lock()
	defer sharedPostgres.Unlock()
	if sharedPostgres.postgres == nil {
		sharedPostgres.postgres = startPostgres(lasting{t})
	}
	p := sharedPostgres.postgres
	sharedPostgres.databases++
	name := fmt.Sprint("test", sharedPostgres.databases)
	postgres, err := sql.Open("pgx", p.name("postgres"))
	require.NoError(t, err)
	defer postgres.Close()
	_, err = postgres.Exec("CREATE DATABASE " + name)
	require.NoError(t, err)
	return opened(t, p.name(name))
}

func opened(t testing.TB, name string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// startPostgres starts a server, and stops it at the test's end. If it is not installed, the test is skipped, or fails in CI.
func startPostgres(t testing.TB) *postgres {
	t.Helper()
	return startPostgresWith(t, "-c fsync=off")
}

// startPostgresWith is startPostgres with options for the server.
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
	dir, err := os.MkdirTemp("", "pg") // the socket's path must be short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &postgres{bin: filepath.Dir(found[0]), dir: dir, options: options}
	if os.Geteuid() == 0 {
		uid, gid := p.account(t)
		require.NoError(t, os.Chown(dir, uid, gid))
	}
	p.initialize(t)
	p.start(t)
	t.Cleanup(func() { p.stop(t) })
	return p
}

// pristine is a new server's data folder. Each server begins with a copy, because initdb takes seconds.
// The log's files have 1 MB instead of 16 MB, because copying the first one takes most of the time.
var pristine struct {
	sync.Mutex
	dir string
}

func (p *postgres) initialize(t testing.TB) {
	t.Helper()
	pristine.Lock()
	defer pristine.Unlock()
	if pristine.dir == "" {
		p.run(t, "initdb", "-D", p.data(), "-U", "test", "-A", "trust", "-N", "-E", "UTF8", "--wal-segsize=1")
		dir, err := os.MkdirTemp("", "pristine")
		require.NoError(t, err)
		atEnd(func() { _ = os.RemoveAll(dir) })
		copied(t, p.data(), filepath.Join(dir, "data"))
		pristine.dir = dir
		return
	}
	copied(t, filepath.Join(pristine.dir, "data"), p.data())
}

// copied copies a folder with owners and modes.
func copied(t testing.TB, from, to string) {
	t.Helper()
	out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
	require.NoError(t, err, string(out))
}

func (p *postgres) data() string { return filepath.Join(p.dir, "data") }

// account returns the user for the server if the test runs as root: the server refuses to run as root.
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

// name returns a database's data source name for the driver.
func (p *postgres) name(database string) string {
	return fmt.Sprintf("host=%s user=test dbname=%s connect_timeout=60", p.dir, database)
}

func (p *postgres) open(t testing.TB) *sql.DB {
	t.Helper()
	return opened(t, p.name("postgres"))
}

// maria is a MariaDB server shared by all tests. It listens on a socket in its own folder.
type maria struct {
	dir       string
	databases atomic.Int32
}

func (m *maria) socket() string { return filepath.Join(m.dir, "socket") }

// dsn returns a database's data source name for the driver.
func (m *maria) dsn(database string) string {
	return "root@unix(" + m.socket() + ")/" + database + "?parseTime=true&multiStatements=true"
}

// startMariaDB starts the server. It returns nil if it is not installed.
var startMariaDB = sync.OnceValues(func() (m *maria, err error) {
	for _, program := range []string{"mariadbd", "mariadb-install-db", "mariadb"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, nil
		}
	}
	m = new(maria)
	if m.dir, err = os.MkdirTemp("", "maria"); err != nil { // the socket's path must be short
		return nil, err
	}
	data := filepath.Join(m.dir, "data")
	as := []string{"--no-defaults", "--datadir=" + data}
	if os.Geteuid() == 0 { // it refuses to run as root
		as = append(as, "--user=mysql")
		u, err := user.Lookup("mysql")
		if err != nil {
			return nil, err
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(m.dir, uid, gid); err != nil {
			return nil, err
		}
	}
	install := exec.Command("mariadb-install-db", append(as, "--auth-root-authentication-method=normal", "--skip-test-db")...)
	if out, err := install.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mariadb-install-db: %w\n%s", err, out)
	}
	server := exec.Command("mariadbd", append(as, "--socket="+m.socket(), "--skip-networking",
		"--innodb-flush-log-at-trx-commit=0", "--log-bin=binlog", "--server-id=1", "--log-error="+filepath.Join(m.dir, "log"))...)
	if err := server.Start(); err != nil {
		return nil, err
	}
	atEnd(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		_ = os.RemoveAll(m.dir)
	})
	ping := func() error {
		return exec.Command("mariadb", "--no-defaults", "--socket="+m.socket(), "-uroot", "-e", "SELECT 1").Run()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if err := ping(); err == nil {
			return m, nil
		} else if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(m.dir, "log"))
			return nil, fmt.Errorf("mariadbd does not answer: %w\n%s", err, log)
		}
	}
})

// atEnd calls f when all tests have ended, for a shared server. The last f is called first.
func atEnd(f func()) {
	ended.Lock()
	defer ended.Unlock()
	ended.calls = append(ended.calls, f)
}

var ended struct {
	sync.Mutex
	calls []func()
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, f := range slices.Backward(ended.calls) {
		func() {
			defer func() {
				if problem := recover(); problem != nil { // if a server does not end, it fails a test already over, and this panics
					fmt.Fprintln(os.Stderr, problem)
					code = 1
				}
			}()
			f()
		}()
	}
	os.Exit(code)
}

// mariaDB returns the server. If it is not installed, the test is skipped, or fails in CI.
func mariaDB(t testing.TB) *maria {
	t.Helper()
	testsize.Extra(t)
	m, err := startMariaDB()
	require.NoError(t, err)
	if m == nil && os.Getenv("CI") == "true" {
		t.Fatal("MariaDB is not installed")
	} else if m == nil {
		t.Skip("MariaDB is not installed: install the package mariadb-server to run this")
	}
	return m
}

// client runs statements with MariaDB's own client, as a person would.
func (m *maria) client(t testing.TB, name, statements string) {
	t.Helper()
	cmd := exec.Command("mariadb", "--no-defaults", "--socket="+m.socket(), "-uroot", name)
	cmd.Stdin = strings.NewReader(statements)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

func openMariaDB(t testing.TB) *sql.DB {
	t.Helper()
	m := mariaDB(t)
	name := fmt.Sprint("test", m.databases.Add(1))
	m.client(t, "", "CREATE DATABASE "+name)
	db, err := sql.Open("mysql", m.dsn(name))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
