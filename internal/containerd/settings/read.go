package settings

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"berth/internal/limit"
)

// The bounds of what is read.
const (
	mostFiles = 100
	mostDepth = 100 // of values in each other
)

// setting is one value of containerd's configuration.
type setting struct {
	file    string
	line    int
	parts   []string // of the key: those of the CRI plugin begin with cri, in all versions
	written []string // of the key as it stands in the file
	value   any
	unsaid  bool // it is in no file: containerd's default
}

// secret are keys whose values are never shown.
var secret = []string{"auth", "auths", "headers", "password", "identitytoken", "identity_token"}

// text is the setting as it is shown, without secrets.
func (s setting) text() string {
	key := strings.Join(s.written, ".")
	hidden := slices.ContainsFunc(s.parts, func(p string) bool { return slices.Contains(secret, p) })
	if reflect.ValueOf(s.value).Kind() == reflect.Map || hidden {
		return key
	}
	value := []rune(literal(s.value))
	if len(value) > 100 {
		value = append(value[:100:100], '…')
	}
	return key + " = " + string(value)
}

// matches compares a key with a pattern, in which * is any part and ** at the end any more of them.
func (s setting) matches(pattern string) bool {
	want := strings.Split(pattern, ".")
	for i, part := range want {
		switch {
		case part == "**":
			return i <= len(s.parts)
		case i >= len(s.parts) || part != "*" && part != s.parts[i]:
			return false
		}
	}
	return len(want) == len(s.parts)
}

func (s setting) isOneOf(values []any) bool {
	return slices.ContainsFunc(values, func(v any) bool { return reflect.DeepEqual(v, s.value) })
}

func (s setting) isZero() bool {
	v := reflect.ValueOf(s.value)
	return !v.IsValid() || v.IsZero() || (v.Kind() == reflect.Map || v.Kind() == reflect.Slice) && v.Len() == 0
}

// string is the value of a setting that has to be one.
func (s setting) string() string {
	text, _ := s.value.(string)
	return text
}

func (s setting) strings() []string {
	list, _ := s.value.([]any)
	var out []string
	for _, v := range list {
		if text, ok := v.(string); ok {
			out = append(out, text)
		}
	}
	return out
}

// readFile reads a regular file that is small.
func readFile(path string) ([]byte, error) { return limit.ReadFile(path, limit.ContainerdFile) }

// reading are the files of a configuration.
type reading struct {
	c       *conversion
	found   map[string]setting // by their keys
	seen    map[string]bool
	version int
	release string // of containerd, see Options
}

// read reads a configuration with what it imports.
func (c *conversion) read(path, release string) (all []setting, version int, err error) {
	r := &reading{c: c, found: map[string]setting{}, seen: map[string]bool{}, release: release}
	for pending := []string{path}; len(pending) > 0; { // as containerd does: what an import imports comes last
		imports, err := r.file(pending[0])
		if err != nil {
			return nil, 0, err
		}
		pending = append(pending[1:], imports...)
	}
	for _, s := range r.found {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b setting) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), slices.Compare(a.written, b.written))
	})
	return all, r.version, nil
}

// file reads a file over what is known, and returns those that it imports.
func (r *reading) file(path string) (imports []string, err error) {
	if r.seen[path] {
		return nil, nil
	}
	if r.seen[path] = true; len(r.seen) > mostFiles {
		return nil, fmt.Errorf("%s: more than %d files are imported", path, mostFiles)
	}
	tree, raw, err := readTOML(path)
	if err != nil {
		return nil, err
	}
	if r.version == 0 {
		v, _ := tree["version"].(int64)
		r.version = max(int(v), 1)
	}
	if r.version > 4 {
		return nil, fmt.Errorf("%s is of version %d, and 1 to 4 are known", path, r.version)
	}
	r.add(path, tree, lines(raw))
	patterns, _ := tree["imports"].([]any)
	for _, p := range patterns {
		pattern, _ := p.(string)
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(path), pattern)
		}
		names := []string{filepath.Clean(pattern)}
		if strings.Contains(pattern, "*") { // else it is a file, which has to be there
			if names, err = filepath.Glob(pattern); err != nil {
				return nil, fmt.Errorf("%s imports %q: %w", path, pattern, err)
			}
		}
		imports = append(imports, names...)
	}
	return imports, nil
}

// readTOML reads a file of TOML.
func readTOML(path string) (tree map[string]any, raw []byte, err error) {
	if raw, err = readFile(path); err != nil {
		return nil, nil, err
	}
	if tree, err = parseTOML(raw); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return tree, raw, nil
}

func parseTOML(raw []byte) (tree map[string]any, err error) {
	if err := shallow(raw); err != nil {
		return nil, err
	}
	if err := toml.Unmarshal(raw, &tree); err != nil {
		return nil, tomlError(err)
	}
	return tree, nil
}

// tomlError is where a file is wrong.
func tomlError(err error) error {
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, _ := at.Position()
		return fmt.Errorf("line %d: %w", line, err)
	}
	return err
}

// shallow refuses a file whose brackets are deeper in each other than any configuration's: the library that reads it
// calls itself for each.
func shallow(raw []byte) error {
	for _, open := range []string{"[", "{"} {
		if bytes.Contains(raw, bytes.Repeat([]byte(open), mostDepth)) {
			return errors.New("its values are too deep in each other")
		}
	}
	for line := range bytes.Lines(raw) {
		if bytes.Count(line, []byte("[")) > 10*mostDepth || bytes.Count(line, []byte("{")) > 10*mostDepth {
			return errors.New("its values are too deep in each other")
		}
	}
	return nil
}

// add takes the settings of a file. Of two files that set one key the later counts; lists outside of plugins are added
// up (mergeConfig in containerd's cmd/containerd/server/config).
func (r *reading) add(path string, tree map[string]any, at map[string]int) {
	var found []setting
	var flatten func(parts []string, value any)
	flatten = func(parts []string, value any) {
		if table, ok := value.(map[string]any); ok && len(table) > 0 {
			for name, below := range table {
				flatten(append(slices.Clip(parts), name), below)
			}
			return
		}
		found = append(found, setting{file: path, line: at[joined(parts)], parts: plain(parts), written: parts, value: value})
	}
	for name, below := range tree {
		flatten([]string{name}, below)
	}
	if plugins, ok := tree["plugins"].(map[string]any); ok && r.version < 3 {
		r.displace(path, plugins)
	}
	for _, s := range found {
		key := joined(s.parts)
		before, _ := r.found[key].value.([]any)
		if list, ok := s.value.([]any); ok && before != nil && s.written[0] != "plugins" {
			s.value = union(before, list)
		}
		r.found[key] = s
	}
}

// displace does as containerd before 2.0, for which what a file says of a plugin replaces all that was said of it
// before. Where nobody knows which containerd it is, it is taken for a later one, which adds, and that is noted.
func (r *reading) displace(path string, plugins map[string]any) {
	first := isFirst(r.release)
	noted := map[string]bool{}
	for key, s := range r.found {
		if len(s.written) < 2 || s.written[0] != "plugins" {
			continue
		}
		plugin := s.written[1]
		if _, said := plugins[plugin]; !said {
			continue
		}
		if first {
			delete(r.found, key)
			if !s.isZero() {
				r.c.drop(s, path+" says something of this plugin, too, and containerd "+r.release+" takes that alone")
			}
		} else if r.release == "" && !noted[plugin] {
			noted[plugin] = true
			r.c.notes = append(r.c.notes, Note{File: path, Key: "plugins." + plugin, To: "added to what earlier files say",
				Why: "containerd 2 does so, and one before 2.0 would take this alone"})
		}
	}
}

func union(a, b []any) []any {
	out := slices.Clone(a)
	for _, v := range b {
		if !slices.ContainsFunc(out, func(w any) bool { return reflect.DeepEqual(v, w) }) {
			out = append(out, v)
		}
	}
	return out
}

func joined(parts []string) string { return strings.Join(parts, "\x00") }

// plugins are those that Berth has a counterpart of, by their names in all versions.
var plugins = map[string]string{
	"cri":                                    "cri",
	"io.containerd.grpc.v1.cri":              "cri",
	"io.containerd.cri.v1.runtime":           "cri",
	"io.containerd.cri.v1.images":            "cri",
	"io.containerd.nri.v1.nri":               "nri",
	"io.containerd.image-verifier.v1.bindir": "verifier",
	"io.containerd.server.v1.metrics":        "metrics",
	"io.containerd.transfer.v1.local":        "transfer",
}

// plain is a key without the name of the plugin.
func plain(parts []string) []string {
	if len(parts) > 1 && parts[0] == "plugins" {
		if name := plugins[parts[1]]; name != "" {
			return append([]string{name}, parts[2:]...)
		}
	}
	return parts
}

// lines finds the line of each key.
func lines(raw []byte) map[string]int {
	var p unstable.Parser
	p.Reset(raw)
	found := map[string]int{}
	note := func(table []string, n *unstable.Node) []string {
		key := slices.Clone(table)
		for it := n.Key(); it.Next(); {
			key = append(key, string(it.Node().Data))
			if _, known := found[joined(key)]; !known {
				found[joined(key)] = p.Shape(it.Node().Raw).Start.Line
			}
		}
		return key
	}
	var value func(table []string, n *unstable.Node)
	value = func(table []string, n *unstable.Node) {
		key := note(table, n)
		if n.Value().Kind == unstable.InlineTable {
			for it := n.Value().Children(); it.Next(); {
				value(key, it.Node())
			}
		}
	}
	var table []string
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = note(nil, e)
		case unstable.KeyValue:
			value(table, e)
		}
	}
	return found
}
