package main

import (
	"fmt"
	"strings"
)

// us is this library's row. The others are compared with it.
const us = "ratelimit"

func (r results) heading(title string) string {
	return fmt.Sprintf("### %s\n\n%s, %s, %s\n", title, r.config["cpu"], r.config["go"], r.config["date"])
}

func peersReport(r results) string {
	var t table
	t.add(r, "Peers", "ns/op", "peer")
	t.add(r, "NewKey", "ns/op", "peer")
	t.add(r, "Memory", "B/key", "peer")
	return strings.Join([]string{
		r.heading("Peers"),
		"Medians, in ns per decision:\n", t.medians(),
		"As multiples of ours:\n", t.ratios(us),
	}, "\n")
}

// ownTables are tables of this library's own workloads. Each one has a benchmark, and the dimensions naming its rows.
var ownTables = []struct {
	title, base, unit string
	row               []string
}{
	{"Allow, ns", "Allow", "ns/op", []string{"algorithm"}},
	{"Take, ns", "Take", "ns/op", []string{"algorithm"}},
	{"Keys never seen, ns", "NewKey", "ns/op", []string{"algorithm"}},
	{"Types of keys, ns", "KeyType", "ns/op", []string{"type"}},
	{"Layers, ns", "Layers", "ns/op", []string{"layers"}},
	{"Memory, B/key", "Memory", "B/key", []string{"type", "algorithm"}},
}

func ownReport(r results) string {
	parts := []string{r.heading("Our own workloads")}
	for _, s := range ownTables {
		var t table
		t.add(r, s.base, s.unit, s.row...)
		parts = append(parts, s.title+":\n", t.medians())
	}
	return strings.Join(parts, "\n")
}

func scaleReport(r results) string {
	var t table
	t.add(r, "Scale", "ns/op", "peer")
	return strings.Join([]string{r.heading("Cost of a decision against the number of keys, ns"), t.medians()}, "\n")
}
