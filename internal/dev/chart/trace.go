package chart

import "strings"

// Trace joins the points with straight lines, without marks, for
// points that are close together. For marks see [Canvas.Curve].
func (c *Canvas) Trace(class string, points []Point) {
	var at []string
	for _, p := range points {
		at = append(at, num(p.X)+","+num(p.Y))
	}
	c.add(`<polyline class="curve %s" points="%s"/>`, class, strings.Join(at, " "))
}
