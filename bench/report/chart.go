package report

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart is lines over one axis, or bars over names.
type Chart struct {
	Title string
	X, Y  string // the labels of the axes, with their units
	Lines []Line
	Bars  []Bar
	Bound float64 // a dashed line that is not to be crossed; 0: none
}

// Line is one line of a chart.
type Line struct {
	Name string
	X, Y []float64
}

// Bar is one bar of a chart.
type Bar struct {
	Name  string
	Value float64
}

// The colours of Okabe and Ito (2008), which people who are colour-blind can
// tell apart.
var colours = []color.RGBA{
	{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {86, 180, 233, 255}, {230, 159, 0, 255}, {90, 90, 90, 255},
}

// SVG draws the chart.
func (c *Chart) SVG() (string, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Title.Padding, p.Legend.Top = vg.Points(6), true
	p.Add(plotter.NewGrid())
	p.Y.Min = 0
	if err := c.draw(p); err != nil {
		return "", fmt.Errorf("chart %q: %w", c.Title, err)
	}
	fit(&p.Title.TextStyle, c.Title, chartWidth-2*chartMargin)
	fit(&p.Y.Label.TextStyle, c.Y, chartHeight-4*chartMargin)
	canvas := vgsvg.New(chartWidth, chartHeight)
	p.Draw(draw.Crop(draw.New(canvas), 0, -chartMargin, 0, -chartMargin/2))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return "", fmt.Errorf("chart %q: %w", c.Title, err)
	}
	_, svg, _ := strings.Cut(b.String(), "<svg") // without the declaration: it goes into a page
	return "<svg" + svg, nil
}

func (c *Chart) draw(p *plot.Plot) error {
	for i, l := range c.Lines {
		points := make(plotter.XYs, len(l.X))
		for j := range points {
			points[j].X, points[j].Y = l.X[j], l.Y[j]
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(1.5)
		p.Add(line)
		if len(c.Lines) > 1 {
			p.Legend.Add(l.Name, line)
		}
	}
	if len(c.Bars) > 0 {
		if err := c.bars(p); err != nil {
			return err
		}
	}
	if c.Bound > 0 {
		bound := plotter.NewFunction(func(float64) float64 { return c.Bound })
		bound.Color, bound.Width, bound.Dashes = color.RGBA{179, 38, 30, 255}, vg.Points(1), []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(bound)
		p.Y.Max = max(p.Y.Max, 1.05*c.Bound)
	}
	return nil
}

func (c *Chart) bars(p *plot.Plot) error {
	names := make([]string, len(c.Bars))
	for i, b := range c.Bars {
		names[i] = b.Name
		bar, err := plotter.NewBarChart(plotter.Values{b.Value}, vg.Points(26))
		if err != nil {
			return err
		}
		bar.XMin, bar.Color, bar.LineStyle.Width = float64(i), colours[i%len(colours)], 0
		p.Add(bar)
	}
	p.NominalX(names...)
	widest := slices.MaxFunc(names, func(a, b string) int { return len(a) - len(b) })
	fit(&p.X.Tick.Label, widest, (chartWidth-6*chartMargin)/vg.Length(len(names)))
	return nil
}

const (
	chartWidth, chartHeight = vg.Length(430), vg.Length(260) // points
	// The label of an axis' last tick is centred on its end, and reaches over it.
	chartMargin = vg.Length(14)
)

// fit makes a text's letters as small as it takes for it not to be clipped.
func fit(style *text.Style, s string, width vg.Length) {
	if is := style.Width(s); is > width {
		style.Font.Size *= width / is
	}
}
