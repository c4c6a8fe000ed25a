package report

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Write writes the page to a file and its charts into a directory; "" leaves one out.
func (p *Page) Write(html, charts string) error {
	if html != "" {
		if err := p.WriteFile(html); err != nil {
			return err
		}
	}
	if charts != "" {
		return p.WriteCharts(charts)
	}
	return nil
}

// WriteText writes the lead and the tables for a terminal.
func (p *Page) WriteText(out io.Writer) error {
	if _, err := fmt.Fprintln(out, strings.Join(p.Lead, "\n")); err != nil {
		return err
	}
	for i := range p.Tables {
		fmt.Fprintln(out)
		if err := p.Tables[i].WriteText(out); err != nil {
			return err
		}
	}
	return nil
}

// Progress returns a function that shows how far a long run is; nil without a terminal.
func Progress(terminal io.Writer, of int64, unit string) func(int64) {
	if terminal == nil {
		return nil
	}
	var last time.Time
	return func(n int64) {
		if now := time.Now(); n == of || now.Sub(last) > 200*time.Millisecond {
			last = now
			fmt.Fprintf(terminal, "\r%d of %d %s", n, of, unit)
			if n == of {
				fmt.Fprintln(terminal)
			}
		}
	}
}
