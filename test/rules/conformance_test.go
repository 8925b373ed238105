package rules

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
)

// requests is every RPC of CRI, and every field of what they take, as message.field. What is Windows' own is left out.
func requests() map[string]bool {
	all, seen := map[string]bool{}, map[protoreflect.FullName]bool{}
	var walk func(protoreflect.MessageDescriptor)
	walk = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] || m.IsMapEntry() || strings.HasPrefix(string(m.Name()), "Windows") {
			return
		}
		seen[m.FullName()] = true
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			all[string(m.Name())+"."+string(f.Name())] = true
			if f.Message() != nil {
				walk(f.Message())
			}
		}
	}
	services := (&runtimeapi.VersionRequest{}).ProtoReflect().Descriptor().ParentFile().Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			all[string(methods.Get(j).Name())] = true
			walk(methods.Get(j).Input())
		}
	}
	return all
}

// conformanceRow is a row about an RPC or a field: its name, and in the last of five cells the tests.
var conformanceRow = regexp.MustCompile("^\\| `([A-Za-z0-9_.]+)` \\| (.+) \\| (.+) \\| (.+) \\| (.+) \\|$")

// TestEveryFieldHasATest compares the tables of docs/conformance-fields.md with the API and with the tests. What the API gets
// needs a row, and each row names tests that there are. Without one it says that Berth does nothing: an RPC that is not
// implemented, or a field that is ignored.
func TestEveryFieldHasATest(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(fixture.Repo(), "docs/conformance-fields.md"))
	if err != nil {
		t.Fatal(err)
	}
	tables, _, _ := strings.Cut(string(text), "## Fields of answers")
	tests, want, rows := testNames(t), requests(), map[string]bool{}
	for line := range strings.Lines(tables) {
		row := conformanceRow.FindStringSubmatch(strings.TrimSpace(line))
		if row == nil {
			continue
		}
		name, does, by := row[1], row[2], row[5]
		if !want[name] || rows[name] {
			t.Errorf("%s has a row that is one too many", name)
		}
		rows[name] = true
		if by == "–" {
			if !regexp.MustCompile(`^(Unimplemented|ignored|not (used|needed|done)|the init )`).MatchString(does) {
				t.Errorf("%s: %q is shown by no test", name, does)
			}
			continue
		}
		for test := range strings.SplitSeq(by, ", ") {
			if !tests[test] {
				t.Errorf("%s is shown by %s, which is not there", name, test)
			}
		}
	}
	for name := range want {
		if !rows[name] {
			t.Errorf("%s has no row in docs/conformance-fields.md", name)
		}
	}
}

// showing are the packages whose tests show what a kubelet gets.
var showing = map[string]bool{"test/e2e": true, "test/registry": true, "internal/spec": true, "internal/cdi": true}

// testNames is every test of those packages.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, s := range sources(t) {
		if !showing[s.pkg()] {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && s.isTest() && strings.HasPrefix(f.Name.Name, "Test") {
				all[f.Name.Name] = true
			}
		}
	}
	return all
}
