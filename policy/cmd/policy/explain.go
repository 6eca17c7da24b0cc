package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/shown"
)

// explain prints which rules match a request, and their limits, from a file or from a running service.
func (t *tool) explain(args []string) int {
	if len(args) == 0 && t.service == "" {
		return t.usage("explain needs a file, or -service")
	}
	request := policy.Attributes{}
	attributes := args
	if t.service == "" {
		attributes = args[1:]
	}
	for _, arg := range attributes {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" || strings.ContainsAny(arg, "\r\n") {
			return t.usage(fmt.Sprintf("%q is not ATTRIBUTE=VALUE", arg))
		}
		if _, twice := request[name]; twice {
			return t.usage(fmt.Sprintf("attribute %s is given twice", name))
		}
		request[name] = value
	}
	if t.service != "" {
		return t.query(request)
	}
	set, status, err := t.load(args[0])
	if err != nil {
		return t.fail(status, err)
	}
	p, err := policy.New(set, nil)
	if err != nil {
		return t.fail(differ, err)
	}
	ex, err := p.Explain(request, t.cost)
	if err != nil {
		return t.fail(misuse, err)
	}
	for i := range ex.Rules {
		ex.Rules[i].Decision = nil // the budgets in this process are unspent, so their state would mislead
	}
	if t.json {
		t.print(ex)
	} else {
		fmt.Fprint(t.out, ex)
	}
	if ex.Err != nil {
		return differ
	}
	return fine
}

// queryTime is how long a service may take to answer.
const queryTime = 10 * time.Second

// query calls a running service.
func (t *tool) query(request policy.Attributes) int {
	var lines strings.Builder
	for name, value := range request {
		fmt.Fprintf(&lines, "%s=%s\n", name, value)
	}
	form := url.Values{"do": {"explain"}, "cost": {strconv.Itoa(t.cost)}, "request": {lines.String()}}
	ctx, cancel := context.WithTimeout(context.Background(), queryTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.service, strings.NewReader(form.Encode()))
	if err != nil {
		return t.fail(misuse, err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	for _, h := range t.headers {
		name, value, _ := strings.Cut(h, ":")
		r.Header.Set(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		return t.fail(misuse, err)
	}
	defer w.Body.Close()
	var answer struct {
		Failed      string          `json:"failed"`
		Explanation json.RawMessage `json:"explanation"`
	}
	err = json.NewDecoder(io.LimitReader(w.Body, maxRead)).Decode(&answer)
	switch {
	case err != nil:
		return t.fail(misuse, fmt.Errorf("%s: status %s, and not the answer of package policy/admin", t.service, w.Status))
	case answer.Failed != "":
		return t.fail(misuse, fmt.Errorf("%s: status %s: %s", t.service, w.Status, answer.Failed))
	case len(answer.Explanation) == 0: // for example after a redirect, which turns a POST into a GET
		return t.fail(misuse, fmt.Errorf("%s: status %s, and no explanation: %s %s was answered", t.service, w.Status, w.Request.Method, w.Request.URL))
	}
	text, refused, err := shown.Text(answer.Explanation)
	if err != nil {
		return t.fail(misuse, err)
	}
	if t.json {
		t.print(answer.Explanation)
	} else {
		fmt.Fprint(t.out, text)
	}
	if refused {
		return differ
	}
	return fine
}
