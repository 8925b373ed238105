// Package rules holds the rules of this code base that a compiler does not know, as tests: which package may import
// which, what the monitor may depend on, and how large a file or a type may grow.
package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"berth/hack/product"
	"berth/test/fixture"
)

// source is one Go file of this repository.
type source struct {
	path  string // from the root of the repository
	lines int
	file  *ast.File
	fset  *token.FileSet
}

func (s source) line(pos token.Pos) int { return s.fset.Position(pos).Line }

func (s source) pkg() string { return filepath.ToSlash(filepath.Dir(s.path)) }

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// sources are the Go files of this repository.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// parsed is what sources returns. Most rules read all files, and parsing them takes most of the time of a rule.
var parsed = sync.OnceValues(parse)

func parse() ([]source, error) {
	root, fset := fixture.Repo(), token.NewFileSet()
	var all []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		all = append(all, source{rel, strings.Count(string(text), "\n"), file, fset})
		return err
	})
	return all, err
}

// levels puts each part of internal/ on a floor. A part imports only from floors below its own, so parts on one floor
// do not know each other. What is not named is a leaf.
var levels = map[string]int{
	"cri": 5, "cli": 5, "nri": 5, "preload": 5,
	"pod": 4, "image": 4, "stream": 4,
	"bundle": 3, "meter": 3, "session": 3, "restart": 3, // rooms beside pod, which know its values alone
	"sandbox": 2, // what is known of pods, for the rooms around them
	// The foundation: anybody may build on it.
	"fault": 0, "limit": 0, "record": 0, "cgroup": 0, "helper": 0, "userns": 0, "thread": 0, "pipe": 0, "quantity": 0,
	"process": 0, "annotation": 0, "look": 0, "inotify": 0,
	"diskspace": 0, "fill": 0, "listen": 0,
	"fail": -1, // the vocabulary of errors, which the foundation speaks too
	"crun": -1, // how crun is executed, by helpers and monitors
}

const leaf = 1

func level(part string) int {
	if n, ok := levels[part]; ok {
		return n
	}
	return leaf
}

// exceptions are imports between leaves, each with its reason.
var exceptions = map[string]string{
	"runtime -> monitor":     "the driver and the monitor share the types on their wire, and nothing else",
	"helper -> cgroup":       "a helper runs in a tracking group",
	"process -> cgroup":      "a process whose cgroup is frozen waits on purpose",
	"helper -> pipe":         "a helper's output is read to its end",
	"annotation -> quantity": "the values of annotations are quantities",
}

// part is the folder below internal/ that an import path leads to, or "".
func part(path string) string {
	rest, ok := strings.CutPrefix(path, "berth/internal/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

func TestImportsGoDown(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t) {
		from := part("berth/" + s.pkg())
		if from == "" || s.isTest() {
			continue
		}
		for _, spec := range s.file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(path, "berth/cmd/") || strings.HasPrefix(path, "berth/test/") {
				t.Errorf("%s imports %s: internal packages know neither commands nor tests", s.path, path)
			}
			to := part(path)
			if to == "" || to == from || level(to) < level(from) {
				continue
			}
			arrow := from + " -> " + to
			if exceptions[arrow] == "" {
				t.Errorf("%s imports %s: %s does not go down. Let the user declare a small interface, and cmd/berth pass it",
					s.path, path, arrow)
			}
			used[arrow] = true
		}
	}
	for arrow := range exceptions {
		if !used[arrow] {
			t.Errorf("the exception %s is not needed any more", arrow)
		}
	}
}

// roomsOfImage are the packages below internal/image that tests build without the others, with what each imports of
// internal/image and below.
var roomsOfImage = map[string][]string{
	"archive":   {"damage", "document", "layer", "progress", "reference"},
	"catalog":   {"damage", "document", "layer", "reference"},
	"damage":    {"layer"},
	"document":  {},
	"progress":  {},
	"reference": {},
}

// TestRoomsOfImage wants the rooms of the image store to know each other no more than they need.
func TestRoomsOfImage(t *testing.T) {
	const store = "berth/internal/image"
	found := map[string]bool{}
	for _, s := range sources(t) {
		room, ok := strings.CutPrefix("berth/"+s.pkg(), store+"/")
		if _, listed := roomsOfImage[room]; !ok || !listed || s.isTest() {
			continue
		}
		for _, spec := range s.file.Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			to := strings.TrimPrefix(path, store+"/")
			if path == store || to != path && !slices.Contains(roomsOfImage[room], to) {
				t.Errorf("%s imports %s: let the store pass what the room needs", s.path, path)
			}
			found[room+" "+to] = true
		}
	}
	for room, allowed := range roomsOfImage {
		for _, to := range allowed {
			if !found[room+" "+to] {
				t.Errorf("%s does not import %s any more", room, to)
			}
		}
	}
}

// TestMonitorIsSmall keeps the monitor to the standard library and x/sys: there is one in memory for each pod.
func TestMonitorIsSmall(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./cmd/berth-monitor")
	cmd.Dir = fixture.Repo()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(string(out)) {
		if !strings.HasPrefix(path, "berth/") && !strings.HasPrefix(path, "golang.org/x/sys/") {
			t.Errorf("the monitor depends on %s", path)
		}
	}
}

// TestPackagesSayWhatTheyAre wants a comment that begins as godoc wants it, in one file of each package.
func TestPackagesSayWhatTheyAre(t *testing.T) {
	comment, names := map[string]bool{}, map[string]string{}
	for _, s := range sources(t) {
		if s.isTest() && !strings.HasPrefix(s.pkg(), "test/") {
			continue
		}
		name := s.file.Name.Name
		names[s.pkg()] = name
		if s.file.Doc == nil {
			continue
		}
		text := s.file.Doc.Text()
		if strings.HasPrefix(text, "Package "+name+" ") || name == "main" && strings.HasPrefix(text, "Command ") {
			comment[s.pkg()] = true
		}
	}
	for pkg, name := range names {
		if !comment[pkg] {
			t.Errorf("%s (package %s) has no package comment", pkg, name)
		}
	}
}

// The largest file, in lines, and the largest type, in methods: beyond them a module hides inside.
const (
	mostLines   = 600
	mostMethods = 20
)

func TestFilesStaySmall(t *testing.T) {
	for _, s := range sources(t) {
		if s.lines >= mostLines {
			t.Errorf("%s has %d lines; %d are enough", s.path, s.lines, mostLines)
		}
	}
}

// fewerMethods is what to do about a type with too many.
const fewerMethods = "make one a function that takes the type, as runtime.DialInside is, or split the type"

func TestTypesStaySmall(t *testing.T) {
	methods := map[string]int{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && !s.isTest() {
				methods[s.pkg()+"."+product.Receiver(f.Recv.List[0].Type)]++
			}
		}
	}
	for name, n := range methods {
		if n >= mostMethods && largeOnPurpose[name] == "" {
			t.Errorf("%s has %d methods; %d are the most: %s", name, n, mostMethods-1, fewerMethods)
		}
	}
}

// largeOnPurpose are types whose size somebody else decided, and those that are one call cut into its steps: they live
// as long as the call, and nobody else holds them.
var largeOnPurpose = map[string]string{
	"internal/cri.Server":            "CRI has a method for each of its calls",
	"internal/nri.generator":         "NRI asks for a method for each change that a plugin may make to a spec",
	"internal/spec.build":            "one call of Build",
	"internal/image/layer.unpacker":  "one call of Unpack",
	"internal/image/layer.finalizer": "one call of Finalize",
}

// vague are names that say nothing about what is inside.
var vague = map[string]bool{"util": true, "utils": true, "common": true, "helpers": true, "types": true, "base": true,
	"manager": true, "misc": true}

func TestPackagesAreNamedForWhatTheyDo(t *testing.T) {
	for _, s := range sources(t) {
		if vague[s.file.Name.Name] {
			t.Errorf("%s is in a package named %s", s.path, s.file.Name.Name)
		}
	}
}
