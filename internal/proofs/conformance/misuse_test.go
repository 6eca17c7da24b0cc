package conformance

import (
	"database/sql"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/otellimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/audit"
	"github.com/weir-go/ratelimit/policy/policysql"
	"github.com/weir-go/ratelimit/policy/sqlsource"
	"github.com/weir-go/ratelimit/policyredis"
	"github.com/weir-go/ratelimit/promlimit"
	"github.com/weir-go/ratelimit/redislimit"
	"github.com/weir-go/ratelimit/sqllimit"
)

// fault returns the error of a constructor.
func fault[T any](_ T, err error) error { return err }

// nilArguments calls each constructor that must not get nil, without each of its arguments in turn.
func nilArguments(t *testing.T) map[string][]error {
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1), 1).Named("a")
	l := ratelimit.Must(ratelimit.New[string](limit, nil))
	slots := ratelimit.Must(inflight.New[string](1, nil))
	var none ratelimit.Reserver[string]
	var noKeyed *ratelimit.Keyed[string]
	self := func(s string) (string, error) { return s, nil }
	noSelf := (func(string) (string, error))(nil)
	stack := func(y ratelimit.Layer[string]) error { return fault(ratelimit.All(y)) }
	call := func(l ratelimit.Reserver[string]) error { return fault(l.Take(t.Context(), "k", 1)) }
	engine := func(e policy.Engine) error { return fault(e(policy.Budget{Name: "a", Limit: limit}, nil)) }
	_, _, upTo := ratelimit.TakeUpTo(t.Context(), none, "k", 1)
	return map[string][]error{
		"ban.New":                {fault(ban.New(none, none, l)), fault(ban.New(none, l, none)), fault(ban.New[string](noKeyed, l, l))},
		"ban.NewGrowing":         {fault(ban.NewGrowing(none, none, l, l)), fault(ban.NewGrowing(none, l, none, l)), fault(ban.NewGrowing(none, l, l, none))},
		"chain.New":              {fault(chain.New(l, none)), fault(chain.New[string](noKeyed))},
		"failover.New":           {fault(failover.New(none, l, nil)), fault(failover.New(l, none, nil)), fault(failover.New[string](noKeyed, l, nil))},
		"lease.New":              {fault(lease.New(none, nil)), fault(lease.New[string](noKeyed, nil))},
		"grpclimit.New":          {fault(grpclimit.New(nil, nil))},
		"httplimit.New":          {fault(httplimit.New(nil, nil))},
		"httplimit.PerKey":       {fault(httplimit.PerKey(limit, (func(*http.Request) (string, error))(nil), nil))},
		"grpclimit.NewClient":    {fault(grpclimit.NewClient(nil, nil))},
		"httplimit.NewTransport": {fault(httplimit.NewTransport(nil, nil, nil))},
		"grpclimit.NewInflight": {
			fault(grpclimit.NewInflight(nil, grpclimit.Method, nil)), fault(grpclimit.NewInflight(slots, nil, nil)),
		},
		"httplimit.NewInflight": {
			fault(httplimit.NewInflight(nil, httplimit.Pattern, nil)), fault(httplimit.NewInflight(slots, nil, nil)),
		},
		"otellimit.New":           {fault(otellimit.New(nil))},
		"promlimit.New":           {fault(promlimit.New(nil))},
		"policy/audit.New":        {fault(audit.New(nil, nil))},
		"policy/sqlsource.New":    {fault(sqlsource.New(nil, nil).Load(t.Context()))},
		"policy/policysql.New":    {engine(policysql.New(nil, nil))},
		"policyredis.New":         {engine(policyredis.New(nil, nil))},
		"redislimit.New":          {fault(redislimit.New(nil, limit, nil))},
		"redislimit.NewFair":      {fault(redislimit.NewFair(nil, limit, nil))},
		"redislimit.NewSemaphore": {fault(redislimit.NewSemaphore(nil, 1, &redislimit.SemaphoreOptions{Name: "a"}))},
		"sqllimit.New":            {fault(sqllimit.New((*sql.DB)(nil), limit, nil))},
		"ratelimit.AllOf":         {fault(ratelimit.AllOf(nil, ratelimit.By(l, self)))},
		"ratelimit.By":            {stack(ratelimit.By(none, self)), stack(ratelimit.By(noKeyed, self)), stack(ratelimit.By(l, noSelf))},
		"ratelimit.Global":        {stack(ratelimit.Global[string](none)), stack(ratelimit.Global[string](noKeyed))},
		"ratelimit.Map":           {call(ratelimit.Map(none, self)), call(ratelimit.Map(ratelimit.Reserver[string](l), noSelf))},
		"ratelimit.Peek":          {fault(ratelimit.Peek(t.Context(), none, "k", 1))},
		"ratelimit.Adjust":        {ratelimit.Adjust(t.Context(), none, "k", 1)},
		"ratelimit.Reset":         {ratelimit.Reset(t.Context(), none, "k")},
		"ratelimit.TakeUpTo":      {upTo},
		"ratelimit.Wait":          {ratelimit.Wait(t.Context(), none, "k", 1)},
	}
}

// nilable are the types of parameters that a constructor must not get as nil.
var nilable = regexp.MustCompile(`(Limiter|Reserver)\[|redis\.UniversalClient|\*sql\.DB|metric\.Meter|prometheus\.Registerer|key func\(|pick func\(`)

// elsewhere are the functions that have no error to return.
var elsewhere = []string{"otellimit.Timed", "promlimit.Timed", "policy/audit.Of"}

// constructors returns the constructors, and the functions for any limiter, that have such a parameter and can report it.
func constructors(t *testing.T) (names []string) {
	text, err := os.ReadFile("../../tools/api/api.txt")
	require.NoError(t, err)
	function := regexp.MustCompile(`^github\.com/weir-go/(ratelimit[\w/]*): func ([A-Z]\w*)(?:\[.*?\])?(\(.*)$`)
	for line := range strings.Lines(string(text)) {
		m := function.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || strings.Contains(m[1], "/internal/") || m[1] == "ratelimit/connectlimit" || m[1] == "ratelimit/keyfunc" || m[1] == "ratelimit/ratelimittest" {
			continue // connectlimit is no part of this module, and its tests check the same
		}
		parameters := m[3]
		if i := strings.LastIndex(parameters, ") "); i > 0 { // without the results
			parameters = parameters[:strings.LastIndex(parameters[:i+1], ")")+1]
		}
		name := strings.TrimPrefix(m[1], "ratelimit/") + "." + m[2]
		if nilable.MatchString(parameters) && !slices.Contains(elsewhere, name) {
			names = append(names, name)
		}
	}
	return names
}

func TestConstructorsNameTheNilArgumentInOneForm(t *testing.T) {
	testsize.Arithmetic(t)
	form := regexp.MustCompile(`^[\w/]+: (\w+: )?((layer \d: )?\w+: )?[\w.]+(\[\d\])? is nil$|^[\w/]+: \w+: \w+ holds a nil \S+: give nil itself for none$`)
	calls := nilArguments(t)
	for name, errs := range calls {
		for i, err := range errs {
			require.Error(t, err, "%s, %d", name, i)
			assert.Regexp(t, form, err.Error(), "%s, %d", name, i)
		}
	}
	for _, name := range constructors(t) {
		_, called := calls[name]
		assert.True(t, called, "%s must not get nil, and is not called here", name)
	}
}

// zeros are calls of values that no constructor made, without an error to return.
func zeros(t *testing.T) map[string]func() {
	return map[string]func(){
		"ratelimit.Keyed":       func() { new(ratelimit.Keyed[string]).Allow("k", 1) },
		"ratelimit.Single":      func() { new(ratelimit.Single).Allow(1) },
		"ratelimit.Layered":     func() { new(ratelimit.Layered[string]).Allow("k", 1) },
		"ban.Limiter":           func() { new(ban.Limiter[string]).Allow("k", 1) },
		"chain.Limiter":         func() { new(chain.Limiter[string]).Allow("k", 1) },
		"failover.Limiter":      func() { new(failover.Limiter[string]).Allow("k", 1) },
		"fair.Limiter":          func() { new(fair.Limiter[string]).Allow("k", 1) },
		"lease.Limiter":         func() { new(lease.Limiter[string]).Allow("k", 1) },
		"inflight.Limiter":      func() { _, _ = new(inflight.Limiter[string]).TryAcquire("k", 1) },
		"grpclimit.Interceptor": func() { new(grpclimit.Interceptor).UnaryServerInterceptor() },
		"grpclimit.Inflight":    func() { new(grpclimit.Inflight[string]).UnaryServerInterceptor() },
		"grpclimit.Client":      func() { new(grpclimit.Client).UnaryClientInterceptor() },
		"httplimit.Middleware":  func() { new(httplimit.Middleware).Wrap(http.NotFoundHandler()) },
		"httplimit.Inflight":    func() { new(httplimit.Inflight[string]).Wrap(http.NotFoundHandler()) },
		"policy.Policies":       func() { new(policy.Policies).Current() },
		"redislimit.Limiter":    func() { new(redislimit.Limiter).Allow("k", 1) },
		"redislimit.Semaphore":  func() { _, _ = new(redislimit.Semaphore).Acquire(t.Context(), "k", 1) },
		"redislimit.Fair":       func() { new(redislimit.Fair).Allow("k", 1) },
		"sqllimit.Limiter":      func() { new(sqllimit.Limiter).Allow("k", 1) },
	}
}

func TestZeroValuesNameTheirConstructorInOneForm(t *testing.T) {
	testsize.Arithmetic(t)
	for name, call := range zeros(t) {
		func() {
			defer func() {
				assert.Regexp(t, `^[\w/]+: this \w+ is nil or zero: make one with \w+((, \w+)? or \w+)?$`, recover(), name)
			}()
			call()
		}()
	}
}
