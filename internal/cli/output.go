package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// The formats of a list.
const (
	formatTable = "table"
	formatJSON  = "json"
)

// outputFlag gives cmd the flag --output.
func outputFlag(cmd *cobra.Command) *string {
	format := formatTable
	cmd.Flags().VarP((*formatValue)(&format), "output", "o", "json or table")
	cmd.Flags().Var((*formatValue)(&format), "format", "as --output")
	_ = cmd.Flags().MarkHidden("format")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{formatJSON, formatTable}, cobra.ShellCompDirectiveNoFileComp))
	return &format
}

// formatValue refuses unknown formats.
type formatValue string

func (f *formatValue) String() string { return string(*f) }
func (f *formatValue) Type() string   { return "format" }
func (f *formatValue) Set(s string) error {
	if strings.Contains(s, "{{") {
		return errors.New("there are no templates: json is for jq, and -q prints ids alone")
	}
	if s != formatTable && s != formatJSON {
		return fmt.Errorf("there is %s and %s", formatJSON, formatTable)
	}
	*f = formatValue(s)
	return nil
}

// table aligns rows under their head.
type table struct{ rows [][]string }

func newTable(head ...string) *table { return &table{rows: [][]string{head}} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(w io.Writer) error {
	lines := t.lines(gap)
	if terminal := terminalOf(w); terminal != nil {
		width, _, err := term.GetSize(int(terminal.Fd()))
		if err != nil {
			width = 0
		}
		lines = t.visible().fitted(width)
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// What stands between columns, and between those that would be too wide for a terminal otherwise.
const gap, narrowGap = 3, 2

// fitted are the rows, aligned, closer together where they do not fit; a width of 0 is not known.
func (t *table) fitted(width int) []string {
	lines := t.lines(gap)
	if width > 0 && slices.ContainsFunc(lines, func(l string) bool { return utf8.RuneCountInString(l) > width }) {
		return t.lines(narrowGap)
	}
	return lines
}

// visible is the table with what would move a cursor escaped: no cell becomes two lines.
func (t *table) visible() *table {
	v := &table{}
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = visibleLine(cell)
		}
		v.rows = append(v.rows, cells)
	}
	return v
}

// lines are the rows, aligned.
func (t *table) lines(gap int) []string {
	width := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	var lines []string
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+gap))
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines
}

// printJSON prints v, indented.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// protoJSON encodes a message of CRI with the names of its fields as CRI's own clients print them.
func protoJSON(m proto.Message) (json.RawMessage, error) {
	data, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var plain bytes.Buffer // protojson varies its spaces on purpose
	if err := json.Compact(&plain, data); err != nil {
		return nil, err
	}
	return plain.Bytes(), nil
}

func printProto(w io.Writer, m proto.Message) error {
	data, err := protoJSON(m)
	if err != nil {
		return err
	}
	return printJSON(w, data)
}

// age says how long ago t was, as a person would.
func age(t, now time.Time) string {
	if t.IsZero() || t.Unix() == 0 {
		return "-"
	}
	return span(now.Sub(t))
}

// ago is age in the middle of a sentence.
func ago(t, now time.Time) string {
	switch text := age(t, now); text {
	case "now":
		return "just now"
	case "-":
		return "at a time that nobody knows"
	default:
		return text + " ago"
	}
}

func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return "now"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d < 2*365*day:
		return fmt.Sprintf("%dd", d/day)
	}
	return fmt.Sprintf("%dy", d/(365*day))
}

// bytesText is a number of bytes in the decimal units that registries and disks are sold in.
func bytesText(n uint64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), -1
	for value >= 999.5 && unit < 4 {
		value, unit = value/1000, unit+1
	}
	digits := 0
	if value < 99.95 {
		digits = 1
	}
	return fmt.Sprintf("%.*f %cB", digits, value, "kMGTP"[unit])
}

const shortLength = 12

// short is the beginning of an id, which does wherever an id is asked for as long as it is unique.
func short(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), shortLength)]
}
