package main

import (
	"regexp"
	"strings"
)

// rules lists the counted phrases. An expression's whole match is
// one hit, unless skip reports that the phrase is good English here.
var rules = [...]struct {
	name string
	expr *regexp.Regexp
	skip func(before, after string) bool // nil if no use is skipped
}{
	{"what, who", regexp.MustCompile(`(?i)\b(what|whatever|who|whom|whoever)\b`), notNounClause},
	{"tell, say, ask, hear", regexp.MustCompile(`(?i)\b(tell|tells|told|telling|say|says|said|saying|ask|asks|asked|asking|hear|hears|heard|hearing)\b`), nil},
	{"those, that of, one that", regexp.MustCompile(`(?i)\b(those|that of|ones? that)\b`), nil},
	{"adverbs", regexp.MustCompile(`(?i)\b(tak(e|es|en|ing) note|took note|in vain|meanwhile|nobody|somebody|as good as|mistakes? of ours)\b`), nil},
}

// measured lists words of good English. Too many of them make a text hard to read, except "for
// example", which helps. They are counted, but not listed as hits. The ranges come from the Go
// comments of four models, as counted by this program: log/slog in Go 1.26, zap 1.27.0 with
// its licence headers, otter 2.2.1 and bbolt 1.4.0. No identifier there describes speech.
var measured = [...]struct {
	name   string
	expr   *regexp.Regexp
	models string
}{
	{"of", regexp.MustCompile(`(?i)\bof\b`), "15-29"},
	{"which", regexp.MustCompile(`(?i)\bwhich\b`), "1.5-1.9"},
	{"that", regexp.MustCompile(`(?i)\bthat\b`), "6-12"},
	{"whose", regexp.MustCompile(`(?i)\bwhose\b`), "0-1.2"},
	{"for example", regexp.MustCompile(`(?i)\b(for example|for instance|e\.g\.)`), "0.3-2.0"},
}

// speech matches the parts of an identifier that describe data flow as speech.
var speech = regexp.MustCompile(`(?i)^(tell|tells|told|say|says|said|ask|asks|asked|hear|hears|heard)$`)

// notNounClause reports whether a "what" or "who" does not begin a clause in a noun's place. There are three such cases: a
// question; "whatever" followed by a noun, as in "whatever the limit"; and a "who" after its noun, as in "callers who leave".
func notNounClause(before, after string) bool {
	if end := strings.IndexAny(after, ".?!"); end >= 0 && after[end] == '?' {
		return true
	}
	word, rest, _ := strings.Cut(strings.ToLower(after), " ")
	switch word = strings.TrimRight(word, ".,;:!)"); word {
	case "who", "whom":
		last := lastWord(before)
		return last != "" && !beforeClause[last]
	case "whatever":
		next, _, _ := strings.Cut(rest, " ")
		return next == "the" || next == "its" || next == "their"
	}
	return false
}

// lastWord returns the word before a match in lower case, or "" if a sentence
// begins at the match. It ignores a comma in between, as in "the caller, who".
func lastWord(before string) string {
	before = strings.TrimRight(before, " \n\t,(—–*_")
	if before == "" || strings.ContainsAny(before[len(before)-1:], ".;:!?|") {
		return ""
	}
	return strings.ToLower(strings.Trim(before[strings.LastIndexAny(before, " \n\t(")+1:], "*_`\"'"))
}

// beforeClause lists words that introduce a clause with "who": prepositions, conjunctions and verbs.
var beforeClause = func() map[string]bool {
	set := map[string]bool{}
	for _, word := range strings.Fields(`a about after against all-of and as at because before but by for from if in into is are was of on or over than that the to under unless
		when where which while with without know knows see sees show shows tell tells told say says ask asks decide decides learn learns find finds finds out return returns report reports
		record records note notes find log logs matter matters only not nor then`) {
		set[word] = true
	}
	return set
}()
