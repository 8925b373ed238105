package rules

import (
	"cmp"
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/config"
	"berth/internal/limit"
	"berth/test/fixture"
	"berth/test/golden"
)

// TestLimitsAreDocumented compares docs/limits.md with the table of limits and the defaults of their keys.
func TestLimitsAreDocumented(t *testing.T) {
	standard := config.Default()
	unset := map[string]string{} // what 0 stands for
	for _, k := range config.Keys() {
		unset[k.Name] = k.Unset
	}
	var rows strings.Builder
	for _, b := range limit.All() {
		amount, key := b.Amount(b.Limit), "–"
		if b.Key != "" {
			value := standard.Value(b.Key)
			if value == "" {
				t.Errorf("%s: there is no key %s", b.Name, b.Key)
			}
			amount, key = strings.TrimSpace(value+" "+string(b.Unit)), "`"+b.Key+"`"
		}
		if amount == "0" {
			amount = cmp.Or(unset[b.Key], "none")
		}
		fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", b.Name, amount, key, b.Beyond)
	}
	path := filepath.Join(fixture.Repo(), "docs/limits.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const head = "| what is limited | by default | key | what is beyond it |\n|---|---|---|---|\n"
	before, _, ok := strings.Cut(string(text), head)
	if !ok {
		t.Fatalf("%s has no table of limits", path)
	}
	golden.File(t, path, before+head+rows.String())
}

// TestLimitsAreUsed wants every limit of the table to be asked somewhere in the product, and no error that a limit is
// reached to be made elsewhere: it is the same everywhere.
func TestLimitsAreUsed(t *testing.T) {
	defined, used := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.isTest() || !strings.HasPrefix(s.pkg(), "internal/") && !strings.HasPrefix(s.pkg(), "cmd/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if lastName(n.X) == "limit" {
					used[n.Sel.Name] = true
				}
			case *ast.ValueSpec:
				if s.pkg() == "internal/limit" && len(n.Values) == 1 {
					if c, ok := n.Values[0].(*ast.CallExpr); ok && lastName(c.Fun) == "define" {
						defined[n.Names[0].Name] = true
					}
				}
			case *ast.CallExpr:
				if kind, text := kindAndText(n); kind == "ErrResourceExhausted" {
					t.Errorf("%s:%d: %s is an error of package limit's", s.path, s.line(n.Pos()), text)
				}
			}
			return true
		})
	}
	if len(defined) != len(limit.All()) {
		t.Errorf("%d limits are found of %d", len(defined), len(limit.All()))
	}
	own := map[string]bool{ // set, and never exceeded: what there would be more of waits, or the kernel refuses it
		"PullLayers": true, "LayerConnections": true, "Processes": true,
	}
	for name := range defined {
		if !used[name] && !own[name] {
			t.Errorf("nothing asks limit.%s", name)
		}
	}
}
