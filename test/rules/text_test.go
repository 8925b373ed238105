package rules

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"berth/test/fixture"
)

// mostColumns is how wide a line of code may be, a tab counting as one.
const mostColumns = 120

// TestLinesAreNarrow tells of each line that is too wide. What is between backquotes is as its reader takes it, and
// counts nothing.
func TestLinesAreNarrow(t *testing.T) {
	for _, s := range sources(t) {
		text, err := os.ReadFile(filepath.Join(fixture.Repo(), s.path))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range bytes.Lines(withoutRaw(s, text)) {
			n++
			if width := utf8.RuneCount(bytes.TrimRight(line, "\n")); width > mostColumns {
				t.Errorf("%s:%d has %d columns; %d are enough", filepath.ToSlash(s.path), n, width, mostColumns)
			}
		}
	}
}

// TestFilesAreFormatted wants every file as gofmt writes it.
func TestFilesAreFormatted(t *testing.T) {
	for _, s := range sources(t) {
		text, err := os.ReadFile(filepath.Join(fixture.Repo(), s.path))
		if err != nil {
			t.Fatal(err)
		}
		formatted, err := format.Source(text)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(formatted, text) {
			t.Errorf("%s is not formatted: gofmt -w %[1]s", filepath.ToSlash(s.path))
		}
	}
}

// withoutRaw is the text without what is between backquotes, but for the ends of its lines.
func withoutRaw(s source, text []byte) []byte {
	kept, from := []byte{}, 0
	ast.Inspect(s.file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, "`") {
			at, end := s.fset.Position(lit.Pos()).Offset, s.fset.Position(lit.End()).Offset
			kept = append(kept, text[from:at]...)
			kept = append(kept, bytes.Repeat([]byte("\n"), bytes.Count(text[at:end], []byte("\n")))...)
			from = end
		}
		return true
	})
	return append(kept, text[from:]...)
}

// TestImportsAreGrouped wants the imports of a file in three groups, with an empty line between: the standard library,
// other modules, Berth.
func TestImportsAreGrouped(t *testing.T) {
	found := map[string]int{}
	for _, s := range sources(t) {
		last, lastLine := 0, 0
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.IMPORT {
				continue
			}
			for _, spec := range g.Specs {
				i := spec.(*ast.ImportSpec)
				group, line := importGroup(i.Path.Value), s.line(i.Pos())
				if group < last || last != 0 && group != last && line == lastLine+1 || group == last && line > lastLine+1 {
					found[filepath.ToSlash(s.path)] = 1
				}
				last, lastLine = group, line
			}
		}
	}
	none(t, "imports are in three groups: the standard library, others, Berth", found)
}

// importGroup is 1 for the standard library, 2 for other modules, 3 for Berth.
func importGroup(quoted string) int {
	path := strings.Trim(quoted, `"`)
	first, _, _ := strings.Cut(path, "/")
	switch {
	case first == "berth":
		return 3
	case strings.Contains(first, "."):
		return 2
	}
	return 1
}

// retiredRow is a row of the glossary's table of retired words: the words, and what replaces them.
var retiredRow = regexp.MustCompile("(?m)^\\| (`[^|]+`) \\| [^|]+ \\|$")

// TestRetiredWords keeps words that the glossary has retired from becoming names again, of packages or of what those of
// the product declare.
func TestRetiredWords(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(fixture.Repo(), "docs/glossary.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "## Retired words")
	if !ok {
		t.Fatal("docs/glossary.md has no table of retired words")
	}
	retired := map[string]bool{}
	for _, row := range retiredRow.FindAllStringSubmatch(table, -1) {
		for word := range strings.SplitSeq(row[1], ", ") {
			retired[strings.ToLower(strings.Trim(word, "`"))] = true
		}
	}
	if len(retired) < 20 {
		t.Fatalf("only %d retired words were found", len(retired))
	}
	found := map[string]int{}
	for _, s := range sources(t) {
		if name := s.file.Name.Name; retired[name] {
			found[s.pkg()]++
		}
		if s.isTest() || !strings.HasPrefix(s.pkg(), "internal/") && !strings.HasPrefix(s.pkg(), "cmd/") {
			continue
		}
		for _, name := range declared(s.file) {
			if retired[strings.ToLower(name)] {
				found[s.pkg()+"."+name]++
			}
		}
	}
	none(t, "the glossary has retired this word, and says what replaces it", found)
}

// declared are the names that a file gives to types, functions, methods, fields, constants and variables of the
// package.
func declared(f *ast.File) (names []string) {
	add := func(idents ...*ast.Ident) {
		for _, i := range idents {
			names = append(names, i.Name)
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					add(spec.Names...)
				case *ast.TypeSpec:
					add(spec.Name)
					if s, ok := spec.Type.(*ast.StructType); ok {
						for _, field := range s.Fields.List {
							add(field.Names...)
						}
					}
				}
			}
		}
	}
	return names
}
