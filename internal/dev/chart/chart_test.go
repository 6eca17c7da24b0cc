package chart

import (
	"encoding/xml"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPictureIsWellFormedWhateverItsText(t *testing.T) {
	c := New(100, 50, `a < b & "c"`, "one\ntwo")
	c.Text("small", "start", 1, 2, "<script>")
	c.Upright("small", 1, 2, "&")
	c.Curve("a", []Point{{1, 2}, {3, 4}})
	var root struct {
		Title string `xml:"title"`
		Texts []struct {
			Text string `xml:",chardata"`
		} `xml:"text"`
	}
	assert.NoError(t, xml.Unmarshal([]byte(c.String()), &root))
	assert.Equal(t, `a < b & "c"`, root.Title)
	assert.Equal(t, "<script>", root.Texts[0].Text)
}

func TestCoordinatesAreRoundedToATenth(t *testing.T) {
	for x, want := range map[float64]string{1: "1", 1.25: "1.3", 2.0499: "2", -0.04: "0", 1e3: "1000"} {
		assert.Equal(t, want, num(x))
	}
}

func TestScales(t *testing.T) {
	linear, log := Linear(0, 10, 100, 0), Log(10, 1000, 0, 100)
	assert.Equal(t, "75", num(linear(2.5)), "a scale may run downwards")
	assert.Equal(t, "50", num(log(100)), "equal ratios are equally far apart")
}
