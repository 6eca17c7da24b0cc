// Package jsontree reads JSON into a tree of YAML nodes. A YAML parser
// could not read all JSON: for example, JSON has different escapes.
package jsontree

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Read reads valid JSON. The nodes have lines and columns.
func Read(data []byte) (*yaml.Node, error) {
	t := &reader{dec: json.NewDecoder(bytes.NewReader(data)), data: data, line: 1, column: 1}
	t.dec.UseNumber()
	return t.value()
}

type reader struct {
	dec    *json.Decoder
	data   []byte
	at     int // the end of the last token
	begun  int // the beginning of the last token
	line   int // the line and column of the last token's beginning
	column int
}

// next returns the next token. It computes the token's place from the last
// one's, because a file may be one long line. A token contains no line break.
func (t *reader) next() (json.Token, error) {
	token, err := t.dec.Token()
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", t.line, err)
	}
	between := t.data[t.at:t.dec.InputOffset()]
	begin := t.at + len(between) - len(bytes.TrimLeft(between, " \t\r\n,:"))
	since := t.data[t.begun:begin]
	if end := bytes.LastIndexByte(since, '\n'); end >= 0 {
		t.line += bytes.Count(since, []byte("\n"))
		t.column, since = 1, since[end+1:]
	}
	t.column += utf8.RuneCount(since)
	t.at, t.begun = int(t.dec.InputOffset()), begin
	return token, nil
}

func (t *reader) value() (*yaml.Node, error) {
	token, err := t.next()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Line: t.line, Column: t.column, Kind: yaml.ScalarNode}
	switch v := token.(type) {
	case json.Delim:
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		if v == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		return n, t.inside(n)
	case string:
		n.Tag, n.Value = "!!str", v
	case json.Number:
		n.Tag, n.Value = "!!int", v.String()
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	case bool:
		n.Tag, n.Value = "!!bool", fmt.Sprint(v)
	default:
		n.Tag = "!!null"
	}
	return n, nil
}

// inside reads a list's or a mapping's elements, and its end.
func (t *reader) inside(n *yaml.Node) error {
	for t.dec.More() {
		v, err := t.value()
		if err != nil {
			return err
		}
		n.Content = append(n.Content, v)
	}
	_, err := t.next()
	return err
}

// HasNull reports whether a value in the tree is null.
func HasNull(n *yaml.Node) bool { return n.Tag == "!!null" || slices.ContainsFunc(n.Content, HasNull) }

// Repeats reports whether a mapping in the tree has the same field twice.
func Repeats(n *yaml.Node) bool {
	seen := map[string]bool{}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if seen[c.Value] {
				return true
			}
			seen[c.Value] = true
		}
		if Repeats(c) {
			return true
		}
	}
	return false
}
