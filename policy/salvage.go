package policy

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v4"
)

// filesOf returns the lists' files in a file of rules. The rest of the file may be invalid.
func filesOf(data []byte) (files []string) {
	if !bytes.Contains(data, []byte("lists")) || len(data) > maxSize {
		return nil
	}
	root, err := (&parser{json: isJSON(data)}).tree(data)
	if err != nil {
		return nil
	}
	named := valueOf(root, "lists")
	for i := 1; named != nil && i < len(named.Content) && named.Kind == yaml.MappingNode; i += 2 {
		if value := named.Content[i]; value.Kind == yaml.ScalarNode && checkBeside(value.Value) == nil && !slices.Contains(files, value.Value) {
			files = append(files, value.Value)
		}
	}
	slices.Sort(files)
	return files[:min(len(files), maxLists)]
}

// switchAtMargin matches the kill switch in a YAML file that cannot be
// parsed. It does not match text in quotes or in an indented block.
var switchAtMargin = regexp.MustCompile(`(?m)^kill_switch[ \t]*:[ \t]+(true|false)[ \t]*(?:#.*)?\r?$`)

// switchIn returns the kill switch that a file sets, and whether it sets one.
// The rest of the file may be invalid. If the file sets two, neither counts.
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

// switchInJSON is switchIn for a JSON object. It reads up to the first error.
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
