package main

import (
	"fmt"
	"html"
	"strings"
)

// style has the colors of both themes: browsers choose by the reader's.
const style = `<style>
svg { --ink: #1f2328; --soft: #59636e; --fill: #f6f8fa; --edge: #d1d9e0; --blue: #0969da; --green: #1a7f37; --red: #cf222e; }
@media (prefers-color-scheme: dark) {
svg { --ink: #f0f6fc; --soft: #9198a1; --fill: #151b23; --edge: #3d444d; --blue: #4493f8; --green: #3fb950; --red: #f85149; } }
text { font: 14px system-ui, sans-serif; fill: var(--ink); }
.soft { fill: var(--soft); font-size: 12px; }
.box { fill: var(--fill); stroke: var(--edge); }
.line { stroke: var(--soft); fill: none; stroke-width: 1.5; }
.blue { fill: var(--blue); } .green { fill: var(--green); } .red { fill: var(--red); } .free { fill: var(--edge); }
.on { fill: #fff; font-size: 12px; }
</style>
<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
<path d="M0 0 10 5 0 10z" fill="var(--soft)"/></marker>
`

// drawing is an SVG. Units are pixels at its natural size.
type drawing struct {
	width, height int
	says          string // for readers who do not see it
	parts         strings.Builder
}

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(&d.parts, format+"\n", args...) }

// text writes a line, centered at x.
func (d *drawing) text(x, y int, class, line string) {
	d.add(`<text x="%d" y="%d" text-anchor="middle" class="%s">%s</text>`, x, y, class, html.EscapeString(line))
}

// box is a rectangle with a name, and lines below that.
func (d *drawing) box(x, y, w, h int, name string, lines ...string) {
	d.add(`<rect x="%d" y="%d" width="%d" height="%d" rx="6" class="box"/>`, x, y, w, h)
	first := y + h/2 + 5 - 8*len(lines)
	d.text(x+w/2, first, "", name)
	for i, line := range lines {
		d.text(x+w/2, first+18*(i+1), "soft", line)
	}
}

// arrow goes from a point to another. Its label stands above its middle.
func (d *drawing) arrow(x1, y1, x2, y2 int, label string) {
	d.add(`<path d="M%d %dL%d %d" class="line" marker-end="url(#tip)"/>`, x1, y1, x2, y2)
	if label != "" {
		d.text((x1+x2)/2, (y1+y2)/2-7, "soft", label)
	}
}

// bar is a part of a bar, with a label on it.
func (d *drawing) bar(x, y, w int, class, label string) {
	d.add(`<rect x="%d" y="%d" width="%d" height="34" class="%s"/>`, x, y, w, class)
	of := "on"
	if class == "free" {
		of = "soft"
	}
	d.text(x+w/2, y+21, of, label)
}

// mark is an instant of a time line.
func (d *drawing) mark(x int, line string) {
	d.add(`<path d="M%d 34V100" class="line"/>`, x)
	d.text(x, 26, "", line)
}

// lifeline is a party of a sequence of messages.
func (d *drawing) lifeline(x int, name string) {
	d.box(x-75, 14, 150, 36, name)
	d.add(`<path d="M%d 50V240" class="line" stroke-dasharray="4 4"/>`, x)
}

// svg is the file.
func (d *drawing) svg() string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		d.width, d.height, d.width, d.height, html.EscapeString(d.says)) + style + d.parts.String() + "</svg>\n"
}
