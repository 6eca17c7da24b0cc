package conformance

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/fair"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/otellimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
	"github.com/weir-go/ratelimit/policy/audit"
	"github.com/weir-go/ratelimit/policy/policysql"
	"github.com/weir-go/ratelimit/policy/sqlsource"
	"github.com/weir-go/ratelimit/policyredis"
	"github.com/weir-go/ratelimit/promlimit"
	"github.com/weir-go/ratelimit/redislimit"
	"github.com/weir-go/ratelimit/sqllimit"
)

// fault returns a constructor's error.
func fault[T any](_ T, err error) error { return err }

// nilArguments calls each constructor several times, each time with nil for another argument.
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
		"httplimit.NewTransport": {fault(httplimit.NewTransport(nil, nil, nil)), fault(httplimit.NewTransport((*http.Transport)(nil), nil, nil))},
		"grpclimit.NewInflight": {
			fault(grpclimit.NewInflight(nil, grpclimit.Method, nil)), fault(grpclimit.NewInflight(slots, nil, nil)),
		},
		"httplimit.NewInflight": {
			fault(httplimit.NewInflight(nil, httplimit.Pattern, nil)), fault(httplimit.NewInflight(slots, nil, nil)),
		},
		"otellimit.New":           {fault(otellimit.New(nil))},
		"promlimit.New":           {fault(promlimit.New(nil)), fault(promlimit.New((*prometheus.Registry)(nil)))},
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
		"redislimit.Each":         {ratelimit.Must(redislimit.New(redis.NewClient(&redis.Options{}), limit, nil)).Each(t.Context(), nil)},
		"sqllimit.Each":           {ratelimit.Must(sqllimit.New(new(sql.DB), limit, nil)).Each(t.Context(), nil)},
		"policy.Each":             {ratelimit.Must(policy.New(&policy.Set{}, nil)).Each(t.Context(), "", nil)},
		"ratelimit.Peek":          {fault(ratelimit.Peek(t.Context(), none, "k", 1))},
		"ratelimit.Adjust":        {ratelimit.Adjust(t.Context(), none, "k", 1)},
		"ratelimit.Reset":         {ratelimit.Reset(t.Context(), none, "k")},
		"ratelimit.TakeUpTo":      {upTo},
		"ratelimit.Wait":          {ratelimit.Wait(t.Context(), none, "k", 1)},
	}
}

// nilable matches parameters' types for which a constructor must refuse nil.
var nilable = regexp.MustCompile(`(Limiter|Reserver)\[|redis\.UniversalClient|\*sql\.DB|metric\.Meter|prometheus\.Registerer|key func\(|pick func\(`)

// elsewhere lists functions that cannot return an error.
var elsewhere = []string{"otellimit.Timed", "promlimit.Timed", "policy/audit.Of"}

// constructors returns the constructors, and the functions for any
// limiter, with such a parameter and an error among their results.
func constructors(t *testing.T) (names []string) {
	text, err := os.ReadFile("../../tools/api/api.txt")
	require.NoError(t, err)
	function := regexp.MustCompile(`^github\.com/weir-go/(ratelimit[\w/]*): func ([A-Z]\w*)(?:\[.*?\])?(\(.*)$`)
	for line := range strings.Lines(string(text)) {
		m := function.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || strings.Contains(m[1], "/internal/") || m[1] == "ratelimit/connectlimit" || m[1] == "ratelimit/keyfunc" || m[1] == "ratelimit/ratelimittest" {
			continue // connectlimit is not in this module, and its own tests check the same
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

// made has pointers to zero values of types that need a constructor.
var made = []any{
	new(ratelimit.Keyed[string]), new(ratelimit.Single), new(ratelimit.Layered[string]), new(ban.Limiter[string]), new(chain.Limiter[string]),
	new(failover.Limiter[string]), new(fair.Limiter[string]), new(lease.Limiter[string]), new(inflight.Limiter[string]),
	new(grpclimit.Interceptor), new(grpclimit.Client),
	new(httplimit.Middleware), new(httplimit.Inflight[string]), new(httplimit.Transport),
	new(policy.Policies), new(audit.Log), new(promlimit.Metrics), new(otellimit.Metrics),
	new(redislimit.Limiter), new(redislimit.Semaphore), new(redislimit.Fair), new(sqllimit.Limiter),
}

// arguments returns a value for each of a method's parameters.
func arguments(ctx context.Context, zero any, method reflect.Type) (all []reflect.Value) {
	layer, _ := zero.(ratelimit.Limiter[string])
	given := []any{ctx, "k", 1, time.Second, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), http.NotFoundHandler(),
		httptest.NewRequest(http.MethodGet, "http://localhost/", nil), policy.Attributes{}, &policy.Set{}, policy.Decision{},
		[]ratelimit.Joining{{Limiter: layer}}}
	for i := range method.NumIn() {
		if method.IsVariadic() && i == method.NumIn()-1 {
			continue
		}
		value := reflect.Zero(method.In(i))
		for _, x := range given {
			if reflect.TypeOf(x).AssignableTo(method.In(i)) {
				value = reflect.ValueOf(x)
				break
			}
		}
		all = append(all, value)
	}
	return all
}

// panics returns the text of a call's panic, or "" if the call returns.
func panics(call func()) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprint(p)
		}
	}()
	call()
	return ""
}

// If no constructor has made a value, each of its methods panics with the constructor's name, or has no effect. In
// httplimit and grpclimit, a nil value also has no effect, because a program without a limit may read its counters.
func TestZeroValuesNameTheirConstructorInOneForm(t *testing.T) {
	testsize.Arithmetic(t)
	const form = `^$|^([\w/]+|layer 0): this \w+ is nil or zero: make one with \w+((, \w+)? or \w+)?$`
	ended, end := context.WithCancel(t.Context())
	end()
	for _, zero := range made {
		values := []reflect.Value{reflect.ValueOf(zero)}
		if strings.HasPrefix(values[0].Type().String(), "*httplimit.") || strings.HasPrefix(values[0].Type().String(), "*grpclimit.") {
			values = append(values, reflect.Zero(values[0].Type()))
		}
		for _, value := range values {
			found := false
			for i := range value.NumMethod() {
				m := value.Method(i)
				text := panics(func() {
					for _, result := range m.Call(arguments(ended, zero, m.Type())) { // RoundTrip and Join return the text as an error
						if err, ok := result.Interface().(error); ok && strings.Contains(err.Error(), "nil or zero") {
							panic(err)
						}
					}
				})
				assert.Regexp(t, form, text, "%T.%s", zero, value.Type().Method(i).Name)
				found = found || text != ""
			}
			assert.True(t, found, "%T", zero)
		}
	}
}

func TestFunctionsWithoutAnErrorPanicForNilInOneForm(t *testing.T) {
	testsize.Arithmetic(t)
	key, noKey := func(s string) (string, error) { return s, nil }, (func(string) (string, error))(nil)
	log, err := audit.New(new(sql.DB), nil)
	require.NoError(t, err)
	require.NoError(t, log.Close(t.Context())) // close the log before it uses the database
	l := ratelimit.Must(httplimit.PerIP(ratelimit.Unlimited(), nil))
	slots := ratelimit.Must(httplimit.NewInflight(ratelimit.Must(inflight.New[string](1, nil)), httplimit.Pattern, nil))
	for want, call := range map[string]func(){
		"promlimit: Timed: l is nil":                 func() { promlimit.Timed[string](ratelimit.Must(promlimit.New(prometheus.NewRegistry())), "a", nil) },
		"otellimit: Timed: l is nil":                 func() { otellimit.Timed[string](ratelimit.Must(otellimit.New(noop.Meter{})), "a", nil) },
		"policy/audit: Of: key is nil":               func() { audit.Of[string](log, "a", nil) },
		"keyfunc: Join: a is nil":                    func() { keyfunc.Join(noKey, key) },
		"keyfunc: Join: b is nil":                    func() { keyfunc.Join(key, noKey) },
		"keyfunc: Optional: key is nil":              func() { keyfunc.Optional(noKey) },
		"keyfunc: Otherwise: known is nil":           func() { keyfunc.Otherwise(noKey, key) },
		"keyfunc: Otherwise: key is nil":             func() { keyfunc.Otherwise(key, noKey) },
		"httplimit: Middleware.Wrap: next is nil":    func() { l.Wrap(nil) },
		"httplimit: Inflight.Wrap: next is nil":      func() { slots.Wrap(nil) },
		"promlimit: this Metrics is nil or zero":     func() { promlimit.OnDecision[string](nil, "a") },
		"otellimit: this Metrics is nil or zero":     func() { otellimit.OnDecision[string](new(otellimit.Metrics), "a") },
		"policy/audit: this Log is nil or zero":      func() { audit.Of[string](nil, "a", strings.Clone) },
		"policy: this Policies is nil or zero: make": func() { admin.New(nil, nil) },
	} {
		assert.Contains(t, panics(call), want)
	}
}
