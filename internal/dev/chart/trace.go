package chart

import "strings"

// Trace joins points close together with straight lines. Unlike [Canvas.Curve], it does not mark them.
func (c *Canvas) Trace(class string, points []Point) {
	var at []string
	for _, p := range points {
		at = append(at, num(p.X)+","+num(p.Y))
	}
	c.add(`<polyline class="curve %s" points="%s"/>`, class, strings.Join(at, " "))
}
