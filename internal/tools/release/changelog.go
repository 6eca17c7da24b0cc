package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

const (
	unreleased   = "## [Unreleased]\n"
	incompatible = "### Incompatible\n"
)

// moveUnreleased moves a changelog's Unreleased section under the version.
func moveUnreleased(text, version string, now time.Time) (string, error) {
	number := strings.TrimPrefix(version, "v")
	before, rest, found := strings.Cut(text, unreleased)
	if !found {
		return "", errors.New("CHANGELOG.md has no section " + strings.TrimSpace(unreleased))
	}
	if strings.Contains(text, "## ["+number+"]") {
		return "", fmt.Errorf("CHANGELOG.md has a section %s already", number)
	}
	section, _, _ := strings.Cut(rest, "\n## [")
	if strings.TrimSpace(section) == "" {
		return "", errors.New("CHANGELOG.md has nothing that is not released")
	}
	if strings.Contains(section, incompatible) {
		if semver.Major(version) != "v0" {
			return "", fmt.Errorf("CHANGELOG.md has a section %s, which a release of v1 must not have", strings.TrimSpace(incompatible))
		}
		if patch := strings.TrimPrefix(version, semver.MajorMinor(version)+"."); !strings.HasPrefix(patch, "0") {
			return "", fmt.Errorf("CHANGELOG.md has a section %s: that takes a new minor version, and %s is a patch", strings.TrimSpace(incompatible), version)
		}
	}
	return before + unreleased + "\n## [" + number + "] - " + now.UTC().Format(time.DateOnly) + "\n" + rest, nil
}
