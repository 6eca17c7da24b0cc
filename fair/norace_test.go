//go:build !race

package fair_test

const raceEnabled = false
