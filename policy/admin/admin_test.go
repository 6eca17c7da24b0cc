package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
	"github.com/weir-go/ratelimit/policy/internal/joined"
)

const adminRules = `version: "2026-11-21.3"
rules:
- {name: users, description: each user, match: {route: /v1/, not: {user: [secret-internal]}}, key: user, limit: fixed-window 2/h, plans: {pro: fixed-window 9/h}, overrides: [{key: secret-mallory, limit: blocked}], changed_by: ann}
- {name: pairs, match: {route: /v1/}, key: [user, region], limit: fixed-window 5/h}
- {name: trial, match: {route: /v1/}, key: user, shadow: true, limit: fixed-window 1/h}
- {name: probes, allow: true, match: {route: /healthz}}
`

// breaker is a failover whose state is set by Force.
type breaker struct {
	state  failover.State
	forced bool
}

func (b *breaker) Stats() failover.Stats {
	s := failover.Stats{State: b.state, Forced: b.forced}
	if b.state != failover.StateClosed {
		s.DegradedSince = time.Now().Add(-time.Minute)
	}
	return s
}

func (b *breaker) Force(to failover.State) { b.state, b.forced = to, true }

// served is a running page with its log.
type served struct {
	t       *testing.T
	p       *policy.Policies
	handler http.Handler
	breaker *breaker
	log     bytes.Buffer
}

func serve(t *testing.T, opts admin.Options) *served {
	t.Helper()
	s := &served{t: t, breaker: &breaker{}}
	log := slog.New(slog.NewJSONHandler(&s.log, nil))
	var err error
	s.p, err = policy.New(parsed(t, adminRules), nil)
	require.NoError(t, err)
	opts.Logger, opts.Failovers = log, map[string]admin.Failover{"redis": s.breaker}
	s.handler = admin.New(s.p, &opts)
	for range 6 {
		s.p.Allow(policy.Attributes{"path": "/v1/x", "user": "secret-ann", "region": "secret-eu"}, 1)
	}
	return s
}

func (s *served) send(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

func (s *served) post(status int, fields ...string) map[string]any {
	s.t.Helper()
	form := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	r := httptest.NewRequest(http.MethodPost, "/ops/limits", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	w := s.send(r)
	require.Equal(s.t, status, w.Code, w.Body.String())
	var v map[string]any
	require.NoError(s.t, json.Unmarshal(w.Body.Bytes(), &v))
	return v
}

func (s *served) get(accept string) string {
	r := httptest.NewRequest(http.MethodGet, "/ops/limits", nil)
	r.Header.Set("Accept", accept)
	w := s.send(r)
	require.Equal(s.t, http.StatusOK, w.Code)
	return w.Body.String()
}

func TestAdminShowsHowAllStands(t *testing.T) {
	s := serve(t, admin.Options{ShowKeys: true})
	s.breaker.state = failover.StateOpen
	require.Error(t, s.p.Update(&policy.Set{Rules: []policy.Rule{{Name: "1"}}}))
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(s.get("application/json")), &v))
	assert.Equal(t, "2026-11-21.3", v["version"])
	assert.Contains(t, v["error"], "rules[0].name")
	assert.Len(t, v["rules"], 4)
	top := v["denied"].([]any)[1].(map[string]any)
	assert.Equal(t, map[string]any{"rule": "users", "key": "secret-ann", "code": top["code"], "count": 4.0, "error": 0.0}, top)
	assert.NotEmpty(t, v["failovers"].([]any)[0].(map[string]any)["degraded_since"])
	page := s.get("text/html,application/xhtml+xml,*/*;q=0.8")
	for _, text := range []string{"2026-11-21.3", "secret-ann", "secret-internal", "fixed-window 2/h", "pro: fixed-window 9/h", "changed by ann", "1 overrides", "Read-only", "rules[0].name", "open", "passes, whatever the limits"} {
		assert.Contains(t, page, text)
	}
	assert.NotContains(t, page, ">Reset<")
	v = s.post(http.StatusOK, "do", "key", "key", "secret-ann", "plan", "pro")
	assert.Len(t, v["standing"], 2, "each rule with one attribute as its key")
	assert.Equal(t, map[string]any{"allowed": true, "remaining": 7.0, "retry_after": 0.0, "reset_after": v["standing"].([]any)[0].(map[string]any)["now"].(map[string]any)["reset_after"]}, v["standing"].([]any)[0].(map[string]any)["now"])
	v = s.post(http.StatusOK, "do", "key", "key", "secret-ann\r\nsecret-eu\r\n", "rule", "pairs", "cost", "4")
	assert.Equal(t, false, v["standing"].([]any)[0].(map[string]any)["now"].(map[string]any)["allowed"])
	v = s.post(http.StatusOK, "do", "explain", "request", "path=/v1/x\nuser=secret-mallory\nregion=eu")
	assert.Equal(t, "an override", v["explanation"].(map[string]any)["rules"].([]any)[0].(map[string]any)["from"])
}

func TestAdminIsReadOnlyUnlessWritesAreAllowed(t *testing.T) {
	s := serve(t, admin.Options{ShowKeys: true})
	for _, do := range [][]string{{"do", "reset", "rule", "users", "key", "secret-ann"}, {"do", "adjust", "rule", "users", "key", "secret-ann", "delta", "-1"}, {"do", "force", "failover", "redis", "state", "open"}, {"do", "kill_switch", "state", "on"}} {
		assert.Contains(t, s.post(http.StatusForbidden, do...)["failed"], "read-only")
	}
	assert.False(t, s.p.Allow(policy.Attributes{"path": "/v1/x", "user": "secret-ann", "region": "secret-eu"}, 1))
	assert.False(t, s.breaker.forced)
	assert.False(t, s.p.Stats().KillSwitch)
	assert.Empty(t, s.log.String())
	assert.NotNil(t, admin.New(s.p, nil))
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodPatch} {
		assert.Equal(t, http.StatusMethodNotAllowed, s.send(httptest.NewRequest(method, "/", nil)).Code)
	}
}

func TestAdminChangesBudgets(t *testing.T) {
	s := serve(t, admin.Options{Write: true, ShowKeys: true, By: func(*http.Request) string { return "oncall@example.com" }})
	ann := policy.Attributes{"path": "/v1/x", "user": "secret-ann", "region": "secret-eu"}
	v := s.post(http.StatusOK, "do", "reset", "rule", "users", "key", "secret-ann")
	assert.Contains(t, v["done"], "2 now")
	assert.True(t, s.p.Allow(ann, 1))
	assert.Contains(t, s.log.String(), `"do":"reset","by":"oncall@example.com","rule":"users","key":"secret-ann","delta":0,"remaining_before":0`)
	s.log.Reset()
	s.post(http.StatusOK, "do", "adjust", "rule", "pairs", "key", "secret-ann\nsecret-eu", "delta", "1")
	assert.Contains(t, s.log.String(), `"delta":1`)
	s.log.Reset()
	s.post(http.StatusOK, "do", "reset", "rule", "PAIRS", "key", "secret-ann\nsecret-eu") // the case of a rule's name does not matter
	assert.Contains(t, s.log.String(), `"rule":"pairs"`)
	assert.Len(t, s.post(http.StatusOK, "do", "key", "rule", "Users", "key", "secret-ann")["standing"], 1)
	s.log.Reset()
	s.post(http.StatusOK, "do", "force", "failover", "redis", "state", "open")
	assert.Equal(t, failover.StateOpen, s.breaker.state)
	assert.Contains(t, s.log.String(), `"state":"open","state_before":"closed"`)
	for _, wrong := range [][]string{
		{"do", "reset"}, {"do", "reset", "rule", "none"}, {"do", "reset", "rule", "users"}, {"do", "reset", "rule", "users", "key", "a\nb"},
		{"do", "reset", "rule", "users", "code", "0"}, {"do", "adjust", "rule", "users", "key", "a"}, {"do", "adjust", "rule", "users", "key", "a", "delta", "x"},
		{"do", "force", "failover", "none", "state", "open"}, {"do", "force", "failover", "redis", "state", "ajar"}, {"do", "drop"}, {},
		{"do", "key", "key", "a\nb\nc"}, {"do", "key", "key", "a", "cost", "1.5"}, {"do", "explain", "request", "user"}, {"do", "explain", "request", "user=a\nuser=b"},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.PostForm = url.Values{}
		for i := 0; i < len(wrong); i += 2 {
			r.PostForm.Add(wrong[i], wrong[i+1])
		}
		r.Form = r.PostForm
		w := s.send(r)
		assert.Contains(t, []int{http.StatusBadRequest, http.StatusNotFound}, w.Code, "%v", wrong)
	}
}

// TestAdminTakesKeysFromNoURL sends a form's fields in the URL. They must have no effect there.
func TestAdminTakesKeysFromNoURL(t *testing.T) {
	s := serve(t, admin.Options{Write: true})
	r := httptest.NewRequest(http.MethodPost, "/?do=reset&rule=users&key=secret-ann", nil)
	assert.Equal(t, http.StatusBadRequest, s.send(r).Code)
	r = httptest.NewRequest(http.MethodGet, "/?do=reset&rule=users&key=secret-ann", nil)
	assert.Equal(t, http.StatusOK, s.send(r).Code)
	assert.False(t, s.p.Allow(policy.Attributes{"path": "/v1/x", "user": "secret-ann", "region": "secret-eu"}, 1))
}

func TestAdminRefusesOtherOrigins(t *testing.T) {
	s := serve(t, admin.Options{Write: true, ShowKeys: true})
	for header, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("do=reset&rule=users&key=secret-ann"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set(header, value)
		assert.Equal(t, http.StatusForbidden, s.send(r).Code)
	}
	assert.False(t, s.p.Allow(policy.Attributes{"path": "/v1/x", "user": "secret-ann", "region": "secret-eu"}, 1))
}

// TestHiddenKeysAreNowhere performs each action while keys are hidden, and searches all answers and logs for keys.
func TestHiddenKeysAreNowhere(t *testing.T) {
	s := serve(t, admin.Options{Write: true, HashKey: []byte("k")})
	var all strings.Builder
	keep := func(fields ...string) {
		for _, accept := range []string{"application/json", "text/html"} {
			form := url.Values{}
			for i := 0; i < len(fields); i += 2 {
				form.Add(fields[i], fields[i+1])
			}
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(form.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Accept", accept)
			w := s.send(r)
			fmt.Fprint(&all, w.Header(), w.Body)
		}
	}
	all.WriteString(s.get("text/html") + s.get("application/json"))
	for _, rule := range []string{"", "users", "pairs", "trial", "probes", "secret-rule"} {
		for _, key := range []string{"secret-ann", "secret-mallory", "secret-ann\nsecret-eu", strings.Repeat("secret", 300), ""} {
			for _, do := range []string{"key", "reset", "adjust", "secret-do"} {
				keep("do", do, "rule", rule, "key", key, "delta", "1")
			}
		}
	}
	keep("do", "explain", "request", "path=/v1/x\nuser=secret-ann\nregion=secret-eu")
	keep("do", "explain", "request", "path=/v1/x\nuser=secret-mallory")
	keep("do", "explain", "request", "secret-line")
	keep("do", "force", "failover", "secret-failover", "state", "secret-state")
	keep("do", "key", "key", "a", "cost", "secret-cost")
	noSecret(t, all.String())
	noSecret(t, s.log.String())
	code := joined.Hash([]byte("k"), "secret-ann")
	assert.True(t, strings.Contains(all.String(), code))
	assert.Contains(t, s.log.String(), code)

	for range 3 {
		s.p.Allow(policy.Attributes{"path": "/v1/x", "user": "secret-ann", "region": "secret-eu"}, 1)
	}
	keep("do", "reset", "rule", "users", "code", code)
	assert.True(t, s.p.Allow(policy.Attributes{"path": "/v1/x", "user": "secret-ann", "region": "secret-us"}, 1), "a code stands for its key")
	noSecret(t, all.String())
}

// A code names a denied key of one rule, with the rule's key as it was at the denial.
func TestACodeOfAnotherKeyOfTheRuleResetsNothing(t *testing.T) {
	s := serve(t, admin.Options{Write: true, HashKey: []byte("k")})
	set := s.p.Current()
	set.Rules = slices.Clone(set.Rules)
	set.Rules[0].Key, set.Rules[0].Plans, set.Rules[0].Overrides = nil, nil, nil
	require.NoError(t, s.p.Update(set))
	s.p.Allow(policy.Attributes{"path": "/v1/x", "user": "secret-bob", "region": "secret-us"}, 1)
	s.post(http.StatusNotFound, "do", "reset", "rule", "users", "code", joined.Hash([]byte("k"), "secret-ann"))
	d, err := s.p.Peek(t.Context(), policy.Subject{Rule: "users"}, 1)
	require.NoError(t, err)
	assert.Equal(t, 1, d.Remaining)
}

func noSecret(t *testing.T, text string) {
	t.Helper()
	if i := strings.Index(text, "secret"); i >= 0 {
		t.Errorf("a secret: …%s", text[max(0, i-80):min(len(text), i+40)])
	}
}

// pairRules has one rule, so that its limiter may be of any kind.
const pairRules = "rules: [{name: pairs, match: {route: /v1/}, key: [user, region], limit: fixed-window 5/h}]"

// leaky is a limiter whose errors contain keys.
type leaky struct{ ratelimit.Reserver[string] }

func leakyEngine(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
	l, err := ratelimit.New[string](b.Limit, nil)
	return leaky{l}, err
}

func (leaky) Peek(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, fmt.Errorf("%w: no answer for secret-ann", errors.ErrUnsupported)
}

func (leaky) Adjust(context.Context, string, int) error { return errors.New("no room for secret-ann") }

func (leaky) Reset(context.Context, string) error { return errors.New("no room for secret-ann") }

// TestHiddenKeysAreInNoErrorOfAnEngine checks the answer and the log.
func TestHiddenKeysAreInNoErrorOfAnEngine(t *testing.T) {
	var log bytes.Buffer
	p, err := policy.New(parsed(t, pairRules), &policy.Options{Engine: leakyEngine})
	require.NoError(t, err)
	s := &served{t: t, p: p, handler: admin.New(p, &admin.Options{Write: true, HashKey: []byte("k"), Logger: slog.New(slog.NewTextHandler(&log, nil))})}
	for range 3 {
		p.Allow(policy.Attributes{"path": "/v1/x", "user": "secret-ann", "region": "secret-eu"}, 1)
	}
	answers := fmt.Sprint(
		s.post(http.StatusOK, "do", "key", "key", "secret-ann\nsecret-eu"), s.post(http.StatusOK, "do", "key", "key", "secret-ann\nsecret-eu", "rule", "pairs"),
		s.post(http.StatusBadRequest, "do", "reset", "key", "secret-ann\nsecret-eu", "rule", "pairs"),
		s.post(http.StatusBadRequest, "do", "adjust", "delta", "2", "rule", "pairs", "key", "secret-ann\nsecret-eu"),
		s.post(http.StatusOK, "do", "explain", "request", "path=/v1/x\nuser=secret-ann\nregion=secret-eu"))
	noSecret(t, answers)
	noSecret(t, log.String())
	assert.Contains(t, answers, "no answer for …")
	assert.Contains(t, log.String(), "no room for …")
	assert.NotContains(t, log.String(), "remaining", "what is not known is not logged")
}

// TestAdminReadsForms sends forms of both kinds, up to the maximum size.
func TestAdminReadsForms(t *testing.T) {
	s := serve(t, admin.Options{ShowKeys: true})
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	require.NoError(t, errors.Join(w.WriteField("do", "key"), w.WriteField("key", "secret-ann"), w.Close()))
	r := httptest.NewRequest(http.MethodPost, "/", &body)
	r.Header.Set("Content-Type", w.FormDataContentType())
	r.Header.Set("Accept", "application/json")
	assert.Contains(t, s.send(r).Body.String(), `"standing"`)
	assert.Contains(t, s.post(http.StatusRequestEntityTooLarge, "do", "key", "key", strings.Repeat("a", 70_000))["failed"], "more than 65536 bytes")
}

// deaf is an engine whose limiters only decide.
func deaf(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
	l, err := ratelimit.New[string](b.Limit, nil)
	return struct{ ratelimit.Reserver[string] }{l}, err
}

func TestAdminOfAnEngineThatCannotLook(t *testing.T) {
	p, err := policy.New(parsed(t, "rules: [{name: users, match: {route: /v1/}, key: user, limit: fixed-window 2/h}]"), &policy.Options{Engine: deaf})
	require.NoError(t, err)
	var out bytes.Buffer
	s := &served{t: t, p: p, handler: admin.New(p, &admin.Options{Write: true, Logger: slog.New(slog.NewJSONHandler(&out, nil))})}
	assert.Contains(t, s.post(http.StatusOK, "do", "key", "key", "a")["standing"].([]any)[0].(map[string]any)["error"], "cannot look")
	assert.Contains(t, s.post(http.StatusNotImplemented, "do", "reset", "rule", "users", "key", "a")["failed"], errors.ErrUnsupported.Error())
	assert.Contains(t, out.String(), `"error":"`)
	assert.Nil(t, s.post(http.StatusOK, "do", "explain", "request", "path=/v1/x\nuser=a\nregion=b")["explanation"].(map[string]any)["rules"].([]any)[0].(map[string]any)["now"])
}

func TestThePageShowsCharactersThatAreNotSeen(t *testing.T) {
	s := serve(t, admin.Options{ShowKeys: true})
	key := "ann\u202egro.elpmaxe\u200d\x1b[2J"
	for range 4 {
		s.p.Allow(policy.Attributes{"path": "/v1/x", "user": key, "region": "eu"}, 1)
	}
	page := s.get("text/html")
	assert.NotContains(t, page, "\u202e")
	assert.NotContains(t, page, "\x1b")
	assert.Contains(t, page, `ann\u202egro.elpmaxe\u200d\x1b[2J`)
}

func parsed(t *testing.T, text string) *policy.Set {
	t.Helper()
	set, err := policy.Parse([]byte(text))
	require.NoError(t, err)
	return set
}

func TestThePageListsDeniedKeysAndResetsAKey(t *testing.T) {
	for _, show := range []bool{false, true} {
		s := serve(t, admin.Options{Write: true, ShowKeys: show})
		v := s.post(http.StatusOK, "do", "limited")
		require.Len(t, v["limited"], 2, "of users and of the shadow trial; pairs has budget left")
		users := v["limited"].([]any)[0].(map[string]any)
		if users["rule"] != "users" {
			users = v["limited"].([]any)[1].(map[string]any)
		}
		assert.Equal(t, "fixed-window 2/h", users["limit"])
		assert.Equal(t, show, users["key"] == "secret-ann")
		assert.Positive(t, users["now"].(map[string]any)["retry_after"])
		assert.Len(t, s.post(http.StatusOK, "do", "limited", "rule", "USERS")["limited"], 1)
		s.post(http.StatusNotFound, "do", "limited", "rule", "probes")
		s.post(http.StatusOK, "do", "reset", "rule", "users", "code", users["code"].(string))
		assert.Nil(t, s.post(http.StatusOK, "do", "limited", "rule", "users")["limited"])
	}
	p, err := policy.New(parsed(t, "rules: [{name: users, match: {route: /v1/}, key: user, limit: fixed-window 2/h}]"), &policy.Options{Engine: deaf})
	require.NoError(t, err)
	s := &served{t: t, p: p, handler: admin.New(p, nil)}
	assert.Contains(t, s.post(http.StatusNotImplemented, "do", "limited")["failed"], "cannot list keys")
}

// unplanned is a store's limiter that lists its keys without their plans, as a limiter on Redis does.
type unplanned struct {
	ratelimit.Reserver[string]
	keys []string
}

func (l *unplanned) Each(_ context.Context, visit func(string, ratelimit.Decision) bool) error {
	for _, key := range l.keys {
		if !visit(key, ratelimit.Decision{RetryAfter: time.Second}) {
			break
		}
	}
	return nil
}

func (l *unplanned) Join([]ratelimit.Joining) (ratelimit.Joint, error) { return denying{}, nil }

// denying is a store denying each cost.
type denying struct{}

func (denying) Limit(_ int, _ string, ofRequest ratelimit.Limit) (ratelimit.Limit, any, error) {
	return ofRequest, nil, nil
}

func (denying) Decide(_ context.Context, charges []ratelimit.Charge, _ ratelimit.JointRequest) (func([]int) error, error) {
	for i := range charges {
		charges[i].Decided, charges[i].Decision = true, ratelimit.Decision{Limit: charges[i].Limit, RetryAfter: time.Second}
	}
	return nil, nil
}

func (denying) Adjust(context.Context, []ratelimit.Charge) error { return nil }

func (denying) Report(int, ratelimit.Event[string]) {}

func TestTheLimitedKeysAreJudgedByTheirPlans(t *testing.T) {
	rules := func(free, pro, vip int) *policy.Set {
		return parsed(t, fmt.Sprintf(`rules: [{name: api, key: user, limit: fixed-window 40/h, plans: {free: fixed-window %d/h, pro: fixed-window %d/h},
  overrides: [{key: vip, limit: fixed-window %d/h}]}]`, free, pro, vip))
	}
	p, err := policy.New(rules(10, 100, 90), nil)
	require.NoError(t, err)
	s := &served{t: t, p: p, handler: admin.New(p, &admin.Options{ShowKeys: true})}
	for user, plan := range map[string]string{"free": "free", "pro": "pro", "none": "", "vip": "free", "was-free": "free"} {
		for range 60 {
			p.Allow(policy.Attributes{"user": user, "plan": plan}, 1)
		}
	}
	p.Allow(policy.Attributes{"user": "was-free", "plan": "pro"}, 1)
	for i, c := range []struct {
		free, pro, vip int
		limited        []string
	}{
		{10, 100, 90, []string{"free fixed-window 10/h", "none fixed-window 40/h"}}, // 40 of pro's 100 are left, and 30 of vip's 90
		{70, 50, 95, []string{"none fixed-window 40/h", "pro fixed-window 50/h"}},   // the plans' new limits hold for those that had the old ones
		{9, 99, 9, []string{"free fixed-window 9/h", "none fixed-window 40/h", "vip fixed-window 9/h"}},
	} {
		if i > 0 {
			require.NoError(t, p.Update(rules(c.free, c.pro, c.vip)))
		}
		v := s.post(http.StatusOK, "do", "limited")
		assert.NotContains(t, v, "without_plans")
		list, _ := v["limited"].([]any)
		var limited []string
		for _, l := range list {
			limited = append(limited, fmt.Sprint(l.(map[string]any)["key"], " ", l.(map[string]any)["limit"]))
		}
		assert.ElementsMatch(t, c.limited, limited)
	}
}

func TestThePageNamesTheRulesWhosePlansTheStoreDoesNotRecord(t *testing.T) {
	p, err := policy.New(parsed(t, `rules: [{name: api, key: user, limit: fixed-window 40/h, plans: {free: fixed-window 10/h}}]`),
		&policy.Options{Engine: func(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
			l, err := ratelimit.New[string](b.Limit, nil)
			return &unplanned{l, []string{"ann"}}, err
		}})
	require.NoError(t, err)
	s := &served{t: t, p: p, handler: admin.New(p, &admin.Options{ShowKeys: true})}
	v := s.post(http.StatusOK, "do", "limited")
	assert.Equal(t, []any{"api"}, v["without_plans"])
	assert.Len(t, v["limited"], 1)
	assert.Contains(t, s.get("text/html"), "judge all keys by their own limit: api.")
}

func TestThePageTurnsTheKillSwitch(t *testing.T) {
	s := serve(t, admin.Options{Write: true, By: func(*http.Request) string { return "ann" }})
	request := policy.Attributes{"path": "/v1/x", "user": "secret-ann", "region": "secret-eu"}
	require.False(t, s.p.Allow(request, 1))
	assert.NotContains(t, s.get("text/html"), "Turn the kill switch off")
	v := s.post(http.StatusOK, "do", "kill_switch", "state", "on")
	assert.Equal(t, "kill switch: off before, on now", v["done"])
	assert.Equal(t, true, v["kill_switch"])
	assert.True(t, s.p.Allow(request, 1))
	assert.Contains(t, s.get("text/html"), "Turn the kill switch off")
	assert.Contains(t, s.log.String(), `"do":"kill_switch","by":"ann","state":"on","state_before":"off"`)
	require.Error(t, s.p.Update(&policy.Set{Rules: []policy.Rule{{Name: "1"}}}), "rules that are wrong")
	v = s.post(http.StatusOK, "do", "kill_switch", "state", "off")
	assert.Equal(t, "kill switch: on before, off now", v["done"])
	assert.False(t, s.p.Allow(request, 1), "the rules and the spending are the same")
	assert.Equal(t, "2026-11-21.3", v["version"])
	s.post(http.StatusBadRequest, "do", "kill_switch", "state", "half")
	s.post(http.StatusBadRequest, "do", "kill_switch")
	assert.False(t, s.p.Stats().KillSwitch)
}

// Follow loads the source every 30 s, even if it has not changed.
func TestFollowLeavesThePagesSwitchUntilTheSourceChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write := func(text string) {
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	write(adminRules)
	standIn, err := policy.New(nil, nil)
	require.NoError(t, err)
	p, err := policy.New(nil, &policy.Options{Logger: slog.New(slog.DiscardHandler), StandIn: standIn})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	src := &again{Source: policy.File(path), now: make(chan struct{})}
	go func() { done <- policy.Follow(ctx, p, src) }()
	defer func() { cancel(); <-done }()
	soon := func(ok func() bool) { t.Helper(); require.Eventually(t, ok, 20*time.Second, time.Millisecond) }
	soon(func() bool { return p.Stats().Rules == 4 })
	s := &served{t: t, p: p, handler: admin.New(p, &admin.Options{Write: true, Logger: slog.New(slog.DiscardHandler)})}
	s.post(http.StatusOK, "do", "kill_switch", "state", "on")
	assert.True(t, standIn.Stats().KillSwitch, "the stand-in has the same")
	for range 3 {
		src.now <- struct{}{}
	}
	assert.True(t, p.Stats().KillSwitch)
	write("rules: [broken")
	soon(func() bool { return p.Stats().LastError != nil })
	assert.True(t, p.Stats().KillSwitch)
	write(strings.Replace(adminRules, "2026-11-21.3", "2026-11-21.4", 1))
	soon(func() bool { return p.Stats().Version == "2026-11-21.4" })
	assert.False(t, p.Stats().KillSwitch)
	soon(func() bool { return !standIn.Stats().KillSwitch }) // the stand-in gets the set after p
}

// again is a source that reloads also when a test sends to now.
type again struct {
	policy.Source
	now chan struct{}
}

func (a *again) Changes(ctx context.Context) <-chan struct{} {
	file, out := a.Source.Changes(ctx), make(chan struct{})
	go func() {
		defer close(out)
		for {
			select {
			case <-a.now:
			case _, ok := <-file:
				if !ok {
					return
				}
			}
			select {
			case out <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

func TestThePageShowsHowFarAKeyIsInDebt(t *testing.T) {
	s := serve(t, admin.Options{Write: true, ShowKeys: true})
	s.post(http.StatusOK, "do", "reset", "rule", "users", "key", "bob")
	v := s.post(http.StatusOK, "do", "adjust", "rule", "users", "key", "bob", "delta", "7")
	assert.Contains(t, v["done"], "2 left before, 0 now, 5 above the limit")
	assert.Contains(t, s.log.String(), `"remaining":0,"debt":5`)
	v = s.post(http.StatusOK, "do", "key", "rule", "users", "key", "bob")
	assert.Equal(t, 5.0, v["standing"].([]any)[0].(map[string]any)["now"].(map[string]any)["debt"])
	v = s.post(http.StatusOK, "do", "limited", "rule", "users")
	debts := map[any]any{}
	for _, row := range v["limited"].([]any) {
		r := row.(map[string]any)
		debts[r["key"]] = r["now"].(map[string]any)["debt"]
	}
	assert.Equal(t, 5.0, debts["bob"])
	v = s.post(http.StatusOK, "do", "adjust", "rule", "users", "key", "bob", "delta", "-6")
	assert.Contains(t, v["done"], "0 left, 5 above the limit before, 1 now")
}

func TestThePageShowsTheAttributesThatTheProgramSupplies(t *testing.T) {
	p, err := policy.New(parsed(t, "attributes: [user, quota]\nrules: [{name: api, key: [query:session, cookie:id, ip/24/56], limit: calendar 5/minute UTC, limit_from: quota, notify: 80%}, {name: bulk, instead: api, key: user, limit: calendar 9/hour UTC}]"), nil)
	require.NoError(t, err)
	s := &served{t: t, p: p, handler: admin.New(p, nil)}
	page := s.get("text/html")
	for _, text := range []string{"The program supplies <code>user</code>, <code>quota</code>.", "query:session", "cookie:id", "ip/24/56", "calendar 5/minute UTC", "calendar 9/hour UTC", "quota", "80%", "api"} {
		assert.Contains(t, page, text)
	}
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(s.get("application/json")), &v))
	assert.Equal(t, []any{"user", "quota"}, v["attributes"])
}

// The page shows a customer with a contract under the limit for the customer's next request, on any engine.
func TestThePageShowsAKeyUnderItsOwnLastLimit(t *testing.T) {
	const rules = `rules: [{name: api, key: user, limit: fixed-window 10/h, limit_from: quota, plans: {pro: fixed-window 20000/h}, overrides: [{key: vip, limit: fixed-window 500/h}]}]`
	for name, engine := range map[string]policy.Engine{"memory": policy.Memory(nil), "store": storing} {
		t.Run(name, func(t *testing.T) {
			p, err := policy.New(parsed(t, rules), &policy.Options{Engine: engine})
			require.NoError(t, err)
			s := &served{t: t, p: p}
			s.handler = admin.New(p, &admin.Options{Write: true, ShowKeys: true, Logger: slog.New(slog.NewJSONHandler(&s.log, nil))})
			for _, r := range []policy.Attributes{{"user": "ann", "plan": "pro"}, {"user": "bob", "quota": "3000"}, {"user": "vip"}, {"user": "was", "plan": "pro"}} {
				require.True(t, p.Allow(r, 100), r)
			}
			require.False(t, p.Allow(policy.Attributes{"user": "was"}, 1), "a plan that has ended")
			standing := func(fields ...string) string {
				row := s.post(http.StatusOK, append([]string{"do", "key"}, fields...)...)["standing"].([]any)[0].(map[string]any)
				now := row["now"].(map[string]any)
				return fmt.Sprint(row["limit"], " ", now["allowed"], " ", now["remaining"])
			}
			assert.Equal(t, "fixed-window 20000/h true 19900", standing("key", "ann"))
			assert.Equal(t, "fixed-window 3000/h true 2900", standing("key", "bob"))
			assert.Equal(t, "fixed-window 500/h true 400", standing("key", "vip"))
			assert.Equal(t, "fixed-window 10/h false 0", standing("key", "was"))
			assert.Equal(t, "fixed-window 20000/h true 19900", standing("key", "was", "plan", "pro"))
			assert.Equal(t, "fixed-window 10/h true 10", standing("key", "new"))

			v := s.post(http.StatusOK, "do", "adjust", "rule", "api", "key", "ann", "delta", "-60")
			assert.Contains(t, v["done"], "19900 left before, 19960 now")
			assert.Contains(t, s.log.String(), `"remaining_before":19900`)
			v = s.post(http.StatusBadRequest, "do", "adjust", "rule", "api", "key", "ann", "delta", "-5000")
			assert.Contains(t, v["failed"], "-5000 gives back more than the 40 units that the key has spent")
			assert.Contains(t, v["failed"], "overrides with until")
			s.post(http.StatusBadRequest, "do", "adjust", "rule", "api", "key", "ann", "delta", "-9223372036854775808")
			assert.Equal(t, "fixed-window 20000/h true 19960", standing("key", "ann"), "nothing has changed")
			s.post(http.StatusOK, "do", "adjust", "rule", "api", "key", "ann", "delta", "-40")
			assert.Equal(t, "fixed-window 20000/h true 20000", standing("key", "ann"))
			require.NoError(t, p.Update(parsed(t, strings.Replace(rules, "20000", "30000", 1))))
			assert.Equal(t, "fixed-window 30000/h true 30000", standing("key", "ann"), "the plan's limit now")
		})
	}
}

// storing is an engine whose limiters, like a store's, do not record the limit of a key's last decision.
func storing(b policy.Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
	if before != nil {
		return before, nil
	}
	return ratelimit.New[string](b.Limit, nil)
}

func TestThePageShowsListsWithoutTheirValues(t *testing.T) {
	p, err := policy.New(&policy.Set{
		Lists: map[string]policy.List{"bad": {Values: []string{"secret-ann", "secret-bob"}}},
		Rules: []policy.Rule{{Name: "api", Limit: ratelimit.Blocked(), Match: policy.Match{Attributes: map[string][]string{"user": {"@bad", "secret-eve"}}}}},
	}, nil)
	require.NoError(t, err)
	w := httptest.NewRecorder()
	admin.New(p, nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Contains(t, w.Body.String(), "List <code>bad: 2 values</code>")
	assert.Contains(t, w.Body.String(), "user: @bad or 1 values")
	assert.NotContains(t, w.Body.String(), "secret")
}
