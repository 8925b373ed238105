package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// WriteTable writes Markdown: for each runtime the median and, of what was measured several times, the 90th
// percentile, or the one that is the report's own;
// then the first runtime's median over that of each other; last, which goals are met.
func (r *Report) WriteTable(w io.Writer) error {
	r.finish()
	var b strings.Builder
	fmt.Fprintf(&b, "%s, on %s\n\n", r.Day, r.Machine)
	for _, rt := range r.Runtimes {
		fmt.Fprintf(&b, "- %s: %s\n", rt.Name, rt.Version)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "- %s\n", note)
	}
	for _, section := range r.sections() {
		fmt.Fprintf(&b, "\n## %s\n\n", section)
		rows := [][]string{r.heading()}
		for _, m := range r.Metrics {
			if m.Section == section {
				rows = append(rows, r.row(m))
			}
		}
		writeRows(&b, rows)
	}
	if len(r.Goals) > 0 {
		fmt.Fprint(&b, "\n## Goals\n\n")
		writeRows(&b, r.goals())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// goals leaves out what was not measured in this run.
func (r *Report) goals() [][]string {
	rows := [][]string{{"section", "what", "over", "goal", "is", "met"}}
	for _, g := range r.Goals {
		for _, m := range r.Metrics {
			if m.Section != g.Section || m.Name != g.Name {
				continue
			}
			own, other := m.Values[r.Runtimes[0].Name], m.Values[g.Over]
			if is := ratio(own, other); is != "" {
				met := "no"
				if own.Median <= g.AtMost*other.Median {
					met = "yes"
				}
				rows = append(rows, []string{g.Section, strings.TrimSpace(g.Name), g.Over, number(g.AtMost), is, met})
			}
		}
	}
	return rows
}

func (r *Report) sections() []string {
	var list []string
	seen := map[string]bool{}
	for _, m := range r.Metrics {
		if !seen[m.Section] {
			seen[m.Section] = true
			list = append(list, m.Section)
		}
	}
	return list
}

func (r *Report) heading() []string {
	cells := []string{"what", "unit"}
	for _, rt := range r.Runtimes {
		cells = append(cells, rt.Name, fmt.Sprintf("p%d", cmp.Or(r.Tail, 90)))
	}
	for _, other := range r.Runtimes[min(1, len(r.Runtimes)):] {
		cells = append(cells, r.Runtimes[0].Name+"/"+other.Name)
	}
	return cells
}

func (r *Report) row(m *Metric) []string {
	cells := []string{m.Name, m.Unit}
	for _, rt := range r.Runtimes {
		median, tail := "", ""
		if s := m.Values[rt.Name]; s != nil {
			median = number(s.Median)
			if len(s.Samples) > 1 {
				tail = number(s.P90)
			}
			if len(s.Samples) > 1 && r.Tail > 0 {
				tail = number(s.Tail)
			}
		}
		cells = append(cells, median, tail)
	}
	for _, other := range r.Runtimes[min(1, len(r.Runtimes)):] {
		cells = append(cells, ratio(m.Values[r.Runtimes[0].Name], m.Values[other.Name]))
	}
	return cells
}

func ratio(a, b *Statistic) string {
	if a == nil || b == nil || b.Median == 0 {
		return ""
	}
	return number(a.Median / b.Median)
}

// writeRows aligns the first column left, and numbers right.
func writeRows(b *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 3)
		}
	}
	for n, row := range rows {
		for i, cell := range row {
			if i < 2 {
				fmt.Fprintf(b, "| %-*s ", widths[i], cell)
			} else {
				fmt.Fprintf(b, "| %*s ", widths[i], cell)
			}
		}
		b.WriteString("|\n")
		if n == 0 {
			writeRule(b, widths)
		}
	}
}

func writeRule(b *strings.Builder, widths []int) {
	for i, width := range widths {
		if i < 2 {
			fmt.Fprintf(b, "|-%s-", strings.Repeat("-", width))
		} else {
			fmt.Fprintf(b, "|-%s:", strings.Repeat("-", width))
		}
	}
	b.WriteString("|\n")
}

// number writes three digits that count.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}
