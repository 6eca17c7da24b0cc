// Package chart draws the project's pictures as SVG. They can be read in
// light and dark mode. The same numbers give the same bytes on every machine.
package chart

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Canvas is a picture. Coordinates are in pixels from the upper left
// corner. The class of an element determines its look: see style.
type Canvas struct {
	width, height int
	body          strings.Builder
}

// New returns an empty picture. Screen readers read its title and its description.
func New(width, height int, title, description string) *Canvas {
	c := &Canvas{width: width, height: height}
	c.add("<title>%s</title>", escape(title))
	c.add("<desc>%s</desc>", escape(description))
	c.add(`<rect class="paper" x="0.5" y="0.5" width="%d" height="%d" rx="8"/>`, width-1, height-1)
	return c
}

func (c *Canvas) add(format string, args ...any) {
	fmt.Fprintf(&c.body, format+"\n", args...)
}

// Rect draws a rectangle.
func (c *Canvas) Rect(class string, x, y, width, height float64) {
	c.add(`<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`, class, num(x), num(y), num(width), num(height))
}

// Line draws a straight line.
func (c *Canvas) Line(class string, x1, y1, x2, y2 float64) {
	c.add(`<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`, class, num(x1), num(y1), num(x2), num(y2))
}

// Text writes a line of text at the baseline y. The anchor is start, middle or end.
func (c *Canvas) Text(class, anchor string, x, y float64, text string) {
	c.add(`<text class="%s" text-anchor="%s" x="%s" y="%s">%s</text>`, class, anchor, num(x), num(y), escape(text))
}

// Upright writes a line of text upwards, centred on x and y.
func (c *Canvas) Upright(class string, x, y float64, text string) {
	c.add(`<text class="%s" text-anchor="middle" transform="translate(%s %s) rotate(-90)">%s</text>`,
		class, num(x), num(y), escape(text))
}

// Point is a place on the canvas.
type Point struct{ X, Y float64 }

// Curve joins the points with straight lines, and marks each point.
func (c *Canvas) Curve(class string, points []Point) {
	var at []string
	for _, p := range points {
		at = append(at, num(p.X)+","+num(p.Y))
	}
	c.add(`<polyline class="curve %s" points="%s"/>`, class, strings.Join(at, " "))
	for _, p := range points {
		c.add(`<circle class="mark %s" cx="%s" cy="%s" r="3.5"/>`, class, num(p.X), num(p.Y))
	}
}

// String returns the picture as an SVG document.
func (c *Canvas) String() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">
<style>%s</style>
%s</svg>
`, c.width, c.height, c.width, c.height, style, c.body.String())
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder returns no error
	return b.String()
}

// num returns a coordinate rounded to a tenth of a pixel.
func num(x float64) string {
	return strconv.FormatFloat(math.Round(x*10)/10+0, 'f', -1, 64) // +0: no "-0"
}

// Scale maps values to pixels.
type Scale func(value float64) float64

// Linear maps the values between from and to evenly to the pixels between start and end.
func Linear(from, to, start, end float64) Scale {
	return func(v float64) float64 { return start + (v-from)/(to-from)*(end-start) }
}

// Log maps positive values between from and to to the pixels between start and end. Equal ratios get equal distances.
func Log(from, to, start, end float64) Scale {
	linear := Linear(math.Log10(from), math.Log10(to), start, end)
	return func(v float64) float64 { return linear(math.Log10(v)) }
}
