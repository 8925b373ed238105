// Package page reads the pages that tests follow: what they say is typed, and what they say it prints.
package page

import (
	"regexp"
	"strings"
)

// Typed is a command of a page, and what the page says that it prints.
type Typed struct {
	Command string
	Prints  []string
}

// Read takes what is typed from the indented blocks of a page: what follows "$ ", with a document that belongs to
// it to the line EOF. All up to the next one is what it prints. A block that begins with something else is not typed.
func Read(text string) (all []Typed) {
	followed, document := false, false
	for line := range strings.SplitSeq(text, "\n") {
		line, indented := strings.CutPrefix(line, "    ")
		command, begins := strings.CutPrefix(line, "$ ")
		switch {
		case !indented:
			followed, document = false, false
		case begins:
			all = append(all, Typed{Command: command})
			followed, document = true, strings.Contains(command, "<<'EOF'")
		case !followed:
		case document:
			all[len(all)-1].Command += "\n" + line
			document = line != "EOF"
		default:
			all[len(all)-1].Prints = append(all[len(all)-1].Prints, line)
		}
	}
	return all
}

// Pattern matches what is printed: as it stands, but for the width of gaps and for "…", which may be anything, and
// where it is a line of its own any lines.
func (c Typed) Pattern() *regexp.Regexp {
	var lines []string
	for _, line := range c.Prints {
		if line == "…" {
			lines = append(lines, `(?:.*\n)*`)
			continue
		}
		var words []string
		for _, word := range strings.Fields(line) {
			words = append(words, strings.ReplaceAll(regexp.QuoteMeta(word), "…", ".*"))
		}
		lines = append(lines, strings.Join(words, `\s+`)+`\s*\n`)
	}
	return regexp.MustCompile("^" + strings.Join(lines, "") + "$")
}
