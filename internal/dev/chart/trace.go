package chart

import "strings"

// Trace joins the points by straight lines, as [Canvas.Curve] does, without marks: for
// many points that are close together.
func (c *Canvas) Trace(class string, points []Point) {
	var at []string
	for _, p := range points {
		at = append(at, num(p.X)+","+num(p.Y))
	}
	c.add(`<polyline class="curve %s" points="%s"/>`, class, strings.Join(at, " "))
}
