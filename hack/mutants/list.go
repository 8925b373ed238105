package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"berth/hack/product"
)

// room is a part of the product that mutants are made of.
type room struct {
	home  string   // the package that they are chosen from
	count int      // of mutants
	also  []string // packages that code of it may have moved to, with those below
	tests []string // packages whose tests run beside those of the package that a mutant is in
}

var rooms = []room{
	{"internal/pod", 30, []string{"internal/sandbox", "internal/meter", "internal/session", "internal/bundle"}, nil},
	{"internal/image", 30, nil, nil},
	{"internal/monitor", 20, nil, []string{"internal/runtime"}},
}

// The mutants are chosen by a seed: of a function there are two at most, and of each kind about as many.
const (
	seed            = 17
	mostOfAFunction = 2
)

// holds says whether code of a room may be in a package.
func (r room) holds(path string) bool {
	return slices.ContainsFunc(append([]string{r.home}, r.also...), func(of string) bool {
		return path == of || strings.HasPrefix(path, of+"/")
	})
}

func roomOf(home string) room {
	return rooms[slices.IndexFunc(rooms, func(r room) bool { return r.home == home })]
}

// outcome is what becomes of a mutant.
type outcome string

const (
	untried  outcome = "untried"
	killed   outcome = "killed"
	survived outcome = "survived"
	missing  outcome = "missing" // it is not found any more
)

// mutant is a line of the list.
type mutant struct {
	home, function, kind string
	ordinal              int
	text                 string // of the change, when it was chosen
	became               outcome
	by                   string // the test that killed it
}

func (m mutant) name() string {
	return fmt.Sprintf("%s %s %s %d", m.home, m.function, m.kind, m.ordinal)
}

func (m mutant) String() string {
	line := fmt.Sprintf("%s: %s => %s", m.name(), m.text, m.became)
	if m.by != "" {
		line += " by " + m.by
	}
	return line
}

// list is what the file has.
type list struct {
	renamed map[string]string // functions, by their name when the mutants were chosen
	mutants []mutant
}

func (l *list) String() string {
	var text strings.Builder
	for _, old := range slices.Sorted(maps.Keys(l.renamed)) {
		fmt.Fprintf(&text, "renamed %s %s\n", old, l.renamed[old])
	}
	for _, m := range l.mutants {
		fmt.Fprintln(&text, m)
	}
	return text.String()
}

func (l *list) write(path string) error { return os.WriteFile(path, []byte(l.String()), 0o644) }

func readList(path string) (*list, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	l := &list{renamed: map[string]string{}}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if names, ok := strings.CutPrefix(line, "renamed "); ok {
			old, now, _ := strings.Cut(names, " ")
			l.renamed[old] = now
			continue
		}
		m, err := parseMutant(line)
		if err != nil {
			return nil, err
		}
		l.mutants = append(l.mutants, m)
	}
	return l, nil
}

func parseMutant(line string) (m mutant, err error) {
	name, rest, ok := strings.Cut(line, ": ")
	fields := strings.Fields(name)
	last := strings.LastIndex(rest, " => ")
	if !ok || len(fields) != 4 || last < 0 {
		return m, fmt.Errorf("%q is no mutant", line)
	}
	m = mutant{home: fields[0], function: fields[1], kind: fields[2], text: rest[:last]}
	became, by, _ := strings.Cut(rest[last+len(" => "):], " by ")
	m.became, m.by = outcome(became), by
	m.ordinal, err = strconv.Atoi(fields[3])
	return m, err
}

// chosen chooses mutants that compile.
func chosen(p *product.Program) *list {
	l := &list{}
	for _, r := range rooms {
		var all []site
		for _, pkg := range p.Packages {
			if pkg.Path == r.home {
				all = append(all, sites(p, pkg)...)
			}
		}
		of := map[string]int{}
		for _, s := range byTurns(shuffled(all)) {
			if of[r.home] == r.count {
				break
			}
			if of[s.function] < mostOfAFunction && s.compiles(p) {
				of[s.function]++
				of[r.home]++
				l.mutants = append(l.mutants, mutant{r.home, s.function, s.kind, s.ordinal, s.text(), untried, ""})
			}
		}
	}
	return l
}

// byTurns takes one site of each kind, then the next of each.
func byTurns(all []site) (out []site) {
	kinds := map[string][]site{}
	for _, s := range all {
		kinds[s.kind] = append(kinds[s.kind], s)
	}
	for len(kinds) > 0 {
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			out = append(out, kinds[kind][0])
			if kinds[kind] = kinds[kind][1:]; len(kinds[kind]) == 0 {
				delete(kinds, kind)
			}
		}
	}
	return out
}

// find finds a mutant wherever its function is now, and whether it has been renamed yet or not. A function that has
// become exported is the same one. Of several places the one with the same text is meant.
func (l *list) find(p *product.Program, m mutant) (found *site, note string) {
	if now, ok := l.renamed[m.function]; ok {
		if found, _ = findAs(now, p, m); found != nil {
			return found, ""
		}
	}
	return findAs(m.function, p, m)
}

// findAs finds a mutant in the functions of a name.
func findAs(name string, p *product.Program, m mutant) (found *site, note string) {
	note = "its function is gone"
	for _, pkg := range p.Packages {
		if !roomOf(m.home).holds(pkg.Path) {
			continue
		}
		for _, s := range sites(p, pkg) {
			if !strings.EqualFold(s.function, name) || s.kind != m.kind {
				continue
			}
			if s.text() == m.text && (found == nil || found.text() != m.text || s.ordinal == m.ordinal) ||
				s.ordinal == m.ordinal && found == nil {
				found = &s
			}
			note = "its place in the function is gone"
		}
	}
	return found, note
}
