package rules

import (
	"go/ast"
	"regexp"
	"testing"
)

// testName is a test as a page names it.
var testName = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")

// TestSecurityNamesTests has each test that docs/security.md names be there.
func TestSecurityNamesTests(t *testing.T) {
	there := map[string]bool{}
	for _, s := range sources(t) {
		if !s.isTest() {
			continue
		}
		for _, decl := range s.file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				there[f.Name.Name] = true
			}
		}
	}
	named := testName.FindAllStringSubmatch(page(t, "security.md"), -1)
	if len(named) < 50 {
		t.Errorf("docs/security.md names %d tests", len(named))
	}
	for _, m := range named {
		if !there[m[1]] {
			t.Errorf("docs/security.md names %s, which is not there", m[1])
		}
	}
}
