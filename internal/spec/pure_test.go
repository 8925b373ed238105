package spec

import (
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestPure: the package promises to look at nothing but its arguments, so it imports nothing that could.
func TestPure(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		seen++
		for _, i := range parsed.Imports {
			if slices.Contains(
				[]string{`"os"`, `"io/fs"`, `"syscall"`, `"time"`, `"net"`, `"path/filepath"`, `"golang.org/x/sys/unix"`},
				i.Path.Value) {
				t.Errorf("%s imports %s", f.Name(), i.Path.Value)
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d files were looked at", seen)
	}
}
