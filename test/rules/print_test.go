package rules

import (
	"go/ast"
	"strings"
	"testing"
)

// printing is the file whose printer escapes what strangers said, where somebody looks.
const printing = "internal/cli/printer.go"

// programs are the files that hand a container's own output on: what it does with the terminal is its user's wish.
var programs = map[string]bool{
	printing: true, "internal/cli/exec.go": true, "internal/cli/logs.go": true, "internal/cli/run.go": true,
	"internal/cli/session.go": true,
}

// drawers are the files that move the cursor of a terminal.
var drawers = map[string]bool{printing: true, "internal/cli/progress.go": true, "internal/cli/stats.go": true}

// TestOnePrinter wants commands to print through the printer alone.
func TestOnePrinter(t *testing.T) {
	printed := 0
	for _, s := range sources(t) {
		if s.isTest() || !strings.HasPrefix(s.pkg(), "internal/") && s.pkg() != "cmd/berth" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			var name string
			switch n := n.(type) {
			case *ast.SelectorExpr:
				name = lastName(n.X) + "." + n.Sel.Name
				if n.Sel.Name == "OutOrStdout" || n.Sel.Name == "ErrOrStderr" || n.Sel.Name == "OutOrStderr" {
					name = n.Sel.Name
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok {
					name = f.Name
				}
			}
			allowed := true
			switch name {
			case "OutOrStdout", "ErrOrStderr", "OutOrStderr":
				allowed = s.path == printing
				printed++
			case "os.Stdout", "os.Stderr", "fmt.Print", "fmt.Println", "fmt.Printf", "cmd.Print", "cmd.Println", "cmd.Printf",
				"cmd.PrintErr", "cmd.PrintErrln", "cmd.PrintErrf":
				allowed = s.pkg() != "internal/cli"
			case "programStreams":
				allowed = programs[s.path]
			case "drawOn":
				allowed = drawers[s.path]
			}
			if !allowed {
				t.Errorf("%s:%d: %s goes around stdout and stderr of %s, which escape what strangers said", s.path,
					s.line(n.Pos()), name, printing)
			}
			return true
		})
	}
	if printed == 0 {
		t.Error("nothing prints")
	}
}
