package policy

import (
	"fmt"
	"strings"
)

// alike reports whether two words differ by at most the given number of changes. A word cut short differs by one.
func alike(a, b string, changes int) bool {
	if min(len(a), len(b)) < 3 || changes > 1 && max(len(a), len(b)) < 6 { // two changes would be too large a part of a short word
		return a == b
	}
	return changes == 1 && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a)) || reaches(a, b, changes)
}

// reaches is alike for words of any length. A change adds, removes or replaces a letter, or swaps two neighbours.
func reaches(a, b string, changes int) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	if a == "" || b == "" || changes == 0 {
		return len(a)+len(b) <= changes
	}
	return reaches(a[1:], b, changes-1) || reaches(a, b[1:], changes-1) || reaches(a[1:], b[1:], changes-1) ||
		len(a) > 1 && len(b) > 1 && a[:2] == b[1:2]+b[:1] && reaches(a[2:], b[2:], changes-1)
}

// maybe returns a suggestion with a similar known name, or "" if there is none.
func maybe(name string, known []string) string {
	for changes := range 3 {
		for _, k := range known {
			if alike(strings.ToLower(name), strings.ToLower(k), changes) {
				return fmt.Sprintf("; %q, maybe", k)
			}
		}
	}
	return ""
}
