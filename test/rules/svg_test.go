package rules

import (
	"fmt"
	"html"
	"strings"
)

// drawing collects the elements of an SVG picture. Sizes are in pixels. It is white, so that it can be read on a dark
// page.
type drawing struct {
	width, height int
	body          strings.Builder
}

const svgHead = `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" ` +
	`font-family="Helvetica, Arial, sans-serif" font-size="13">
<title>%s</title>
<rect width="%d" height="%d" fill="#ffffff"/>
`

// text is the whole picture, as a file.
func (d *drawing) text(title string) string {
	head := fmt.Sprintf(svgHead, d.width, d.height, d.width, d.height, html.EscapeString(title), d.width, d.height)
	return head + d.body.String() + "</svg>\n"
}

// box draws a rectangle. style is its fill and stroke, as attributes.
func (d *drawing) box(x, y, w, h int, style string) {
	fmt.Fprintf(&d.body, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" %s/>\n", x, y, w, h, style)
}

// words writes a line of text that begins at x, or has its middle there; y is its base line.
func (d *drawing) words(x, y int, style, text string) {
	fmt.Fprintf(&d.body, "<text x=\"%d\" y=\"%d\" %s>%s</text>\n", x, y, style, html.EscapeString(text))
}

// line draws a line between two points.
func (d *drawing) line(x1, y1, x2, y2 int, style string) {
	fmt.Fprintf(&d.body, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" %s/>\n", x1, y1, x2, y2, style)
}
