package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth/internal/annotation"
	"berth/test/fixture"
	"berth/test/golden"
)

// TestAnnotationsAreDocumented compares docs/annotations.md with the table of annotations.
func TestAnnotationsAreDocumented(t *testing.T) {
	var rows strings.Builder
	for _, r := range annotation.Rows() {
		fmt.Fprintf(&rows, "| `%s` | %s | %s | `internal/%s` |\n", r.Key, r.Of, r.Means, r.Reader)
	}
	text := page(t, "annotations.md")
	const head = "| annotation | of a | what it asks for | read by |\n|---|---|---|---|\n"
	before, _, ok := strings.Cut(text, head)
	if !ok {
		t.Fatal("docs/annotations.md has no table of annotations")
	}
	golden.File(t, filepath.Join(fixture.Repo(), "docs/annotations.md"), before+head+rows.String())
}

// TestAnnotationsHaveOneOwner wants the keys of annotations to be spelled in internal/annotation alone, and each to be
// read by the one package that the table names.
func TestAnnotationsHaveOneOwner(t *testing.T) {
	readers := map[string]map[string]bool{} // by the function that reads
	for _, r := range annotation.Rows() {
		readers[r.Func] = map[string]bool{}
	}
	for _, s := range sources(t) {
		if s.isTest() || !strings.HasPrefix(s.pkg(), "internal/") && !strings.HasPrefix(s.pkg(), "cmd/") ||
			s.pkg() == "internal/annotation" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if of := readers[n.Sel.Name]; of != nil && lastName(n.X) == "annotation" {
					of[strings.TrimPrefix(s.pkg(), "internal/")] = true
				}
			case *ast.BasicLit:
				value, err := strconv.Unquote(n.Value)
				if n.Kind == token.STRING && err == nil && isAnnotation(value) {
					t.Errorf("%s:%d: the annotation %s is internal/annotation's", s.path, s.line(n.Pos()), value)
				}
			}
			return true
		})
	}
	for _, r := range annotation.Rows() {
		if got := slices.Collect(maps.Keys(readers[r.Func])); len(got) != 1 || got[0] != r.Reader {
			t.Errorf("annotation.%s, which reads %s, is used by %v, and the table says %s", r.Func, r.Key, got, r.Reader)
		}
	}
}

// isAnnotation says whether a text is, or begins with, the key of an annotation that Berth obeys.
func isAnnotation(text string) bool {
	return slices.ContainsFunc(annotation.Rows(), func(r annotation.Row) bool {
		return text == r.Key || strings.HasSuffix(r.Key, "/") && strings.HasPrefix(text, r.Key)
	})
}
