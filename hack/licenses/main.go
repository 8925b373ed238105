// Command licenses copies the licences of all that is linked into programs of Berth, as the licences want it.
//
//	licenses DIR PROGRAM...
//
// It reads from the programs which modules they were built of, and takes from the module cache each file of such a
// module that is named like a licence or a notice. DIR/README lists the modules. It fails where a module has none.
package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: licenses DIR PROGRAM...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

// source is a module, or Go itself, and where its files are.
type source struct {
	Path, Version string
	Dir           string
}

func run(to string, programs []string) error {
	linked, err := modules(programs)
	if err != nil {
		return err
	}
	sources, err := find(linked)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	var list bytes.Buffer
	for _, s := range sources {
		files, err := s.copy(to)
		if err != nil {
			return fmt.Errorf("%s %s: %w", s.Path, s.Version, err)
		}
		fmt.Fprintf(&list, "%s %s\n", s.Path, s.Version)
		for _, name := range files {
			fmt.Fprintf(&list, "    %s\n", name)
		}
	}
	return os.WriteFile(filepath.Join(to, "README"), list.Bytes(), 0o644)
}

// modules are those that programs were built of, as path@version, in order.
func modules(programs []string) (linked []string, err error) {
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, err
		}
		for _, m := range info.Deps {
			linked = append(linked, replaced(m))
		}
	}
	slices.Sort(linked)
	return slices.Compact(linked), nil
}

func replaced(m *debug.Module) string {
	for m.Replace != nil {
		m = m.Replace
	}
	return m.Path + "@" + m.Version
}

// find has the go command say where modules are. It fetches what is not there.
func find(linked []string) ([]source, error) {
	root, err := goCommand("env", "GOROOT")
	if err != nil {
		return nil, err
	}
	version, err := goCommand("env", "GOVERSION")
	if err != nil {
		return nil, err
	}
	sources := []source{{"go", strings.TrimSpace(version), strings.TrimSpace(root)}}
	out, err := goCommand(append([]string{"mod", "download", "-json"}, linked...)...)
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var s source
		if err := d.Decode(&s); errors.Is(err, io.EOF) {
			return sources, nil
		} else if err != nil {
			return nil, fmt.Errorf("read what go mod download says: %w", err)
		}
		sources = append(sources, s)
	}
}

func goCommand(args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return string(out), nil
}

// license is how files are named that have to go with a program.
var license = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents)([-_.].*)?$`)

// copy copies the licences of a source, and says which they are. Of Go it takes those at the top: the others are of
// its tools.
func (s source) copy(to string) (files []string, err error) {
	to = filepath.Join(to, s.Path+"@"+s.Version)
	err = filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != s.Dir && (s.Path == "go" || d.Name() == "testdata" || d.Name() == "vendor"):
			return fs.SkipDir
		case !d.Type().IsRegular() || !license.MatchString(d.Name()) || strings.HasSuffix(d.Name(), ".go"):
			return nil
		}
		name, err := filepath.Rel(s.Dir, path)
		if err != nil {
			return err
		}
		files = append(files, name)
		return copyFile(filepath.Join(to, name), path)
	})
	if err == nil && len(files) == 0 {
		err = errors.New("there is no file that is named like a licence")
	}
	return files, err
}

func copyFile(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}
