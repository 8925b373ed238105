package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"

	"berth/hack/product"
)

const example = `package example

type box struct {
	n   int
	log logger
}

type logger struct{}

func (logger) Info(string) {}

func (b *box) put(n int, ok bool) (bool, error) {
	if !ok && n > 2 {
		return false, nil
	}
	b.n = n + 1
	b.close()
	b.log.Info("put")
	defer b.close()
	left := n
	b.n = left
	return true, nil
}

func (b *box) close() {}
`

// program is a product of one package with one file.
func program(t *testing.T, path, text string) *product.Program {
	t.Helper()
	p := &product.Program{Fset: token.NewFileSet()}
	f, err := parser.ParseFile(p.Fset, "box.go", text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	pkg := &product.Package{Path: path, Files: []*product.File{{Name: "box.go", Text: text, AST: f}}}
	pkg.Info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	var config types.Config
	if pkg.Types, err = config.Check(path, p.Fset, []*ast.File{f}, pkg.Info); err != nil {
		t.Fatal(err)
	}
	p.Packages = []*product.Package{pkg}
	return p
}

// TestSites finds each place of a function once, and of the log none.
func TestSites(t *testing.T) {
	p := program(t, "internal/image", example)
	var got []string
	for _, s := range sites(p, p.Packages[0]) {
		got = append(got, s.function+" "+s.kind+": "+s.text())
	}
	want := []string{
		"box.put negate: !ok && n > 2 -> !(!ok && n > 2)",
		"box.put logic: && -> ||",
		"box.put compare: > -> >=",
		"box.put return: false -> true",
		"box.put drop: b.n = n + 1 -> nothing",
		"box.put swap: b.n = n + 1 b.close() -> b.close() b.n = n + 1",
		"box.put drop: b.close() -> nothing",
		"box.put arithmetic: + -> -",
		"box.put drop: defer b.close() -> nothing",
		"box.put drop: b.n = left -> nothing",
		"box.put return: true -> false",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("sites:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestUnusedDoesNotCompile leaves out a change after which a variable is not used.
func TestUnusedDoesNotCompile(t *testing.T) {
	p := program(t, "internal/image", example)
	for _, s := range sites(p, p.Packages[0]) {
		if got, want := s.compiles(p), s.text() != "b.n = left -> nothing"; got != want {
			t.Errorf("%s: compiles is %v", s.text(), got)
		}
	}
}

// TestFoundAfterAMove finds a mutant in another package, in an exported function, in one with another name, and at
// another place of the function.
func TestFoundAfterAMove(t *testing.T) {
	m := mutant{"internal/image", "box.put", "drop", 2, "b.close() -> nothing", killed, "TestBox"}
	if again, err := parseMutant(m.String()); err != nil || again != m {
		t.Errorf("%+v, %v", again, err)
	}
	for name, c := range map[string]struct {
		renamed map[string]string
		change  []string
		found   bool
	}{
		"as it was":       {nil, nil, true},
		"exported":        {nil, []string{"put(", "Put(", "box)", "Box)", "box struct", "Box struct"}, true},
		"another place":   {nil, []string{"	b.n = n + 1\n", ""}, true},
		"another name":    {map[string]string{"box.put": "box.add"}, []string{"put(", "add("}, true},
		"not renamed yet": {map[string]string{"box.put": "box.add"}, nil, true},
		"gone":            {nil, []string{"put(", "add("}, false},
	} {
		p := program(t, "internal/image/catalog", strings.NewReplacer(c.change...).Replace(example))
		l := &list{renamed: c.renamed}
		s, note := l.find(p, m)
		if (s != nil) != c.found || s != nil && s.text() != m.text {
			t.Errorf("%s: %v, %s", name, s, note)
		}
	}
}

// TestChosen chooses as many as there are to be, at most two of a function, the same ones each time.
func TestChosen(t *testing.T) {
	p := program(t, "internal/image", example)
	first, again := chosen(p), chosen(p)
	if len(first.mutants) != mostOfAFunction || first.String() != again.String() {
		t.Errorf("%s\nthen\n%s", first, again)
	}
}
