package admin_test

import (
	"flag"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
)

var screenshots = flag.String("screenshots", "", "a folder for screenshots of the admin page")

// driver loads the admin page in a frame of a given width, uses the page, and reports what it found.
const driver = `<!doctype html><body style="margin:0"><iframe id="f" src="/admin" style="border:0;width:%dpx;height:900px"></iframe><pre id="found">nothing</pre><script>
const frame = document.getElementById("f"), found = [];
const steps = [
	doc => { doc.querySelector("textarea[name=key]").value = "acme"; doc.querySelector("button[value=key]").click(); },
	doc => { found.push("stands: " + doc.body.innerText.includes("denies it, 0 left")); doc.querySelector("textarea[name=request]").value = "path=/v1/x\nuser=acme\nregion=eu"; doc.querySelector("button[value=explain]").click(); },
	doc => { found.push("explained: " + doc.body.innerText.includes("fixed-window 2/h (from the rule)")); doc.querySelector("button[value=reset]") ; doc.querySelector("tbody form button").click(); },
	doc => { found.push("reset: " + doc.body.innerText.includes("left before")); doc.querySelector("button[name=state][value=open]").click(); },
	doc => { found.push("forced: " + doc.body.innerText.includes("closed before, open now")); found.push("url: " + frame.contentWindow.location.pathname + frame.contentWindow.location.search); },
];
frame.onload = () => {
	const doc = frame.contentDocument, root = doc.documentElement;
	found.push("wide: " + (root.scrollWidth > root.clientWidth));
	const step = steps.shift();
	if (step) step(doc);
	if (!steps.length) { found.push("back: " + frame.contentWindow.getComputedStyle(doc.body).backgroundColor); document.getElementById("found").textContent = found.join("; "); }
};
</script>`

// TestAdminInABrowser uses the page in Chromium, if installed, in
// light and dark mode, at the widths of a desktop and of a telephone.
func TestAdminInABrowser(t *testing.T) {
	if !testsize.Long() {
		t.Skip("runs with scripts/test -long")
	}
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			browser = path
		}
	}
	if browser == "" {
		t.Skip("needs Chromium: apt-get install chromium")
	}
	for _, width := range []int{375, 1200} {
		for scheme, back := range map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"} {
			t.Run(fmt.Sprint(width, scheme), func(t *testing.T) {
				p, err := policy.New(parsed(t, adminRules), nil)
				require.NoError(t, err)
				for i := range 40 {
					for range 4 {
						p.Allow(policy.Attributes{"path": "/v1/x", "user": "acme", "region": "eu"}, 1)
						p.Allow(policy.Attributes{"path": "/v1/x", "user": fmt.Sprintf("%s-%d@a-very-long-name-of-a-customer.example.com", strings.Repeat("x", 40), i%5), "region": "eu"}, 1)
					}
				}
				_ = p.Update(&policy.Set{Rules: []policy.Rule{{Name: "1"}}})
				page := admin.New(p, &admin.Options{Write: true, ShowKeys: true, Logger: slog.New(slog.DiscardHandler), Failovers: map[string]admin.Failover{"redis": &breaker{}, "standby": &breaker{state: failover.StateOpen}}})
				mux := http.NewServeMux()
				mux.HandleFunc("/admin", func(w http.ResponseWriter, r *http.Request) {
					inner := httptest.NewRecorder()
					page.ServeHTTP(inner, r)
					inner.Header().Del("Content-Security-Policy") // the page forbids frames
					for name, values := range inner.Header() {
						w.Header()[name] = values
					}
					w.WriteHeader(inner.Code)
					_, _ = w.Write(inner.Body.Bytes())
				})
				mux.Handle("/alone", page)
				mux.HandleFunc("/drive", func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "text/html")
					fmt.Fprintf(w, driver, width)
				})
				server := httptest.NewServer(mux)
				defer server.Close()
				dark := map[string]string{"light": "1", "dark": "0"}[scheme]
				run := func(args ...string) string {
					args = append([]string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(),
						"--blink-settings=preferredColorScheme=" + dark, fmt.Sprintf("--window-size=%d,1600", max(width, 500))}, args...)
					out, err := exec.CommandContext(t.Context(), browser, args...).Output()
					require.NoError(t, err)
					return string(out)
				}
				dom := run("--virtual-time-budget=8000", "--dump-dom", server.URL+"/drive")
				m := regexp.MustCompile(`(?s)<pre id="found">(.*?)</pre>`).FindStringSubmatch(dom)
				require.NotNil(t, m, dom)
				assert.Equal(t, "wide: false; wide: false; stands: true; wide: false; explained: true; wide: false; reset: true; wide: false; forced: true; url: /admin; back: "+back, html.UnescapeString(m[1]))
				if *screenshots != "" {
					to := filepath.Join(*screenshots, fmt.Sprintf("admin-%d-%s.png", width, scheme))
					run("--screenshot="+to, server.URL+"/drive", "--virtual-time-budget=3000")
					_, err := os.Stat(to)
					require.NoError(t, err)
				}
			})
		}
	}
}
