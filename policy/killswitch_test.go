package policy_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
)

const oneAnHour = "version: good\nrules:\n- {name: api, key: user, limit: fixed-window 1/h}\n"

// In an incident, the file may contain a colleague's error from an hour ago.
func TestTheKillSwitchOfAFileWorksBesideAnError(t *testing.T) {
	for name, c := range map[string]struct{ on, off string }{
		"a bad limit":       {"kill_switch: true\nrules:\n- {name: a, limit: often}\n", "kill_switch: false\nrules:\n- {name: a, limit: often}\n"},
		"behind the error":  {"rules:\n- {name: a, limit: often}\nkill_switch: true # now\n", "rules:\n- {name: a, limit: often}\nkill_switch: false # over\n"},
		"no YAML":           {"kill_switch: true\nrules: [\n", "kill_switch: false\nrules: [\n"},
		"no YAML, CRLF":     {"rules: }\r\nkill_switch:\ttrue\r\n", "rules: }\r\nkill_switch: false\r\n"},
		"no rules":          {"kill_switch: true\n", "kill_switch: false\n"},
		"a flow":            {"{kill_switch: true, rules: 7}", "{kill_switch: false, rules: 7}"},
		"an unknown field":  {`{"rulez": [], "kill_switch": true}`, `{"rulez": [], "kill_switch": false}`},
		"no JSON":           {`{"kill_switch": true, "rules": [`, `{"kill_switch": false, "rules": [`},
		"a second document": {"kill_switch: true\nrules: []\n---\nrules: []\n", "kill_switch: false\nrules: []\n---\nrules: []\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "limits.yaml")
			write(t, path, oneAnHour)
			p, log := followed(t, policy.File(path))
			becomes(t, p, "good")
			ann := policy.Attributes{"user": "ann"}
			require.True(t, p.Allow(ann, 1))
			require.False(t, p.Allow(ann, 1))
			for _, step := range []struct {
				text string
				on   bool
			}{{c.on, true}, {c.off, false}, {c.on, true}, {oneAnHour, false}} {
				write(t, path, step.text)
				require.Eventually(t, func() bool { return p.Stats().KillSwitch == step.on }, 20*time.Second, time.Millisecond, step.text)
				assert.Equal(t, step.on, p.Allow(ann, 1), "the last good rules hold")
				assert.Equal(t, "good", p.Stats().Version)
			}
			assert.Contains(t, log.String(), `msg="policy: the kill switch was turned; the last good rules stay" kill_switch=true`)
		})
	}
}

func TestAKillSwitchThatIsNotCertainTurnsNothing(t *testing.T) {
	for _, text := range []string{
		"kill_switch: yes\nrules: []\n",
		"kill_switch: \"true\"\nrules: []\n",
		"kill_switch: true\nkill_switch: true\nrules: }\n",
		"rules:\n- {name: a, limit: often, description: \"kill_switch: true\"}\n",
		"description: |\n  kill_switch: true\nrules: }\n",
		`{"a": {"kill_switch": true}, "rules": [`,
		`{"kill_switch": "true", "rules": [`,
		"rules: }\n", "", strings.Repeat("x", 100),
	} {
		path := filepath.Join(t.TempDir(), "limits.yaml")
		write(t, path, text)
		p, _ := followed(t, policy.File(path))
		require.Eventually(t, func() bool { s := p.Stats(); return s.LastError != nil || s.Generation > 1 }, 20*time.Second, time.Millisecond)
		assert.False(t, p.Stats().KillSwitch, text)
	}
}

// Follow loads a source every 30 s, even if it has not changed.
func TestFollowDoesNotUndoAManualUpdateBeforeTheSourceChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text string
		src := &scripted{changes: make(chan struct{}), loads: []func() (*policy.Set, error){func() (*policy.Set, error) {
			if text == "" {
				return nil, errors.New("the store is down")
			}
			return policy.Parse([]byte(text))
		}}}
		load := func(p *policy.Policies, now string) string {
			text = now
			src.changes <- struct{}{}
			synctest.Wait()
			return p.Stats().Version
		}
		text = versioned("v1")
		p, _ := followed(t, src)
		synctest.Wait()
		require.Equal(t, "v1", p.Stats().Version)
		manual := parsed(t, versioned("manual"))
		require.NoError(t, p.Update(manual))
		assert.Equal(t, "manual", load(p, versioned("v1")))
		assert.Equal(t, "manual", load(p, ""), "an outage is no change")
		assert.Equal(t, "manual", load(p, versioned("v1")))
		require.NoError(t, p.Stats().LastError)
		assert.Equal(t, "v2", load(p, versioned("v2")))
		require.NoError(t, p.Update(manual))
		assert.Equal(t, "manual", load(p, versioned("v2")))
		assert.Equal(t, "v1", load(p, versioned("v1")), "the source has gone back")
	})
}
