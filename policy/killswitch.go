package policy

import (
	"bytes"
	"encoding/json"
	"regexp"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit/policy/internal/byhand"
)

func init() {
	byhand.KillSwitch = func(policies any, on bool) bool { return policies.(*Policies).turn(on) }
}

// turn turns the kill switch of the set in force, here and in [Options.StandIn], and reports whether it was on. The rules stay as they are.
func (p *Policies) turn(on bool) (before bool) {
	together, lead := p.hold()
	if lead != nil {
		return lead.turn(on)
	}
	defer release(together)
	before = p.now().set.KillSwitch
	for _, p := range together {
		last := p.now()
		if last.set.KillSwitch == on {
			continue
		}
		set, next := *last.set, *last
		set.KillSwitch = on
		next.set, next.number, next.loadedAt = &set, last.number+1, time.Now()
		p.current.Store(&next)
	}
	return before
}

// switchAtMargin is the kill switch in a file in YAML that cannot be read: the text of a value in quotes or in a block is indented.
var switchAtMargin = regexp.MustCompile(`(?m)^kill_switch[ \t]*:[ \t]+(true|false)[ \t]*(?:#.*)?\r?$`)

// switchIn returns the kill switch that a file sets, and whether it sets one, also if the rest of the file is wrong. Two are none.
func switchIn(data []byte) (on, known bool) {
	if root, err := (&parser{json: isJSON(data)}).tree(data); err == nil {
		for i := 0; i+1 < len(root.Content) && root.Kind == yaml.MappingNode; i += 2 {
			if value := root.Content[i+1]; root.Content[i].Value != "kill_switch" {
			} else if known || value.ShortTag() != "!!bool" || value.Value != "true" && value.Value != "false" {
				return false, false
			} else {
				on, known = value.Value == "true", true
			}
		}
		return on, known
	}
	if text := bytes.TrimSpace(data); len(text) > 0 && text[0] == '{' {
		return switchInJSON(text)
	}
	all := switchAtMargin.FindAllSubmatch(data, 2)
	if len(all) != 1 {
		return false, false
	}
	return string(all[0][1]) == "true", true
}

// switchInJSON is switchIn of an object in JSON, up to the place where it is none.
func switchInJSON(data []byte) (on, known bool) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if _, err := dec.Token(); err != nil {
		return false, false
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return on, known
		}
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return on, known
		}
		if name != "kill_switch" {
			continue
		}
		if text := string(value); known || text != "true" && text != "false" {
			return false, false
		}
		on, known = string(value) == "true", true
	}
	return on, known
}
