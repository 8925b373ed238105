package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Flags is what the daemon's command line says. An empty string was not given.
type Flags struct {
	Path    string // the configuration file; empty is DefaultPath
	PathSet bool   // somebody named the file, so it must be there
	Root    string
	State   string
	Socket  string

	LogLevel string
}

// Error says what is wrong with the configuration, and where. Line is 0 when no line is to blame.
type Error struct {
	File string // or the flag
	Line int
	Key  string // dotted; empty when the file is not TOML at all
	Why  string
}

func (e *Error) Error() string {
	text := e.File
	if e.Line > 0 {
		text = fmt.Sprintf("%s:%d", text, e.Line)
	}
	if e.Key != "" {
		text += ": " + e.Key
	}
	return text + ": " + e.Why
}

// Load reads the file, then the conf.d/*.toml beside it in the order of their names, then the flags. It does not look at
// what the paths lead to.
func Load(f Flags) (*Config, error) {
	if f.Path == "" {
		f.Path = DefaultPath
	}
	l := loader{config: Default(), where: places{}}
	files, err := sources(f)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if err := l.file(file); err != nil {
			return nil, err
		}
	}
	l.flags(f)
	if err := l.check(); err != nil {
		return nil, err
	}
	l.config.where = l.where
	return l.config, nil
}

// sources are the files to read, in their order.
func sources(f Flags) ([]string, error) {
	var files []string
	_, err := os.Stat(f.Path)
	switch {
	case err == nil:
		files = append(files, f.Path)
	case f.PathSet || !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	dir := filepath.Join(filepath.Dir(f.Path), "conf.d")
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the configuration's drop-ins: %w", err)
	}
	for _, e := range entries {
		if name := e.Name(); filepath.Ext(name) == ".toml" && !strings.HasPrefix(name, ".") {
			files = append(files, filepath.Join(dir, name))
		}
	}
	return files, nil
}

// loader is one Load in progress.
type loader struct {
	config *Config
	where  places // who said what last
}

// file lays one file over what is known.
func (l *loader) file(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	var said map[string]any
	if err := toml.Unmarshal(text, &said); err != nil {
		return syntax(path, err)
	}
	here, err := locate(path, text)
	if err != nil {
		return syntax(path, err)
	}
	if err := (shape{path, here}).table("", said, reflect.TypeFor[wire]()); err != nil {
		return err
	}
	w := newWire(l.config)
	if err := toml.Unmarshal(text, w); err != nil {
		return syntax(path, err)
	}
	if err := l.runtimes(path, here, w.Runtimes); err != nil {
		return err
	}
	w.into(l.config)
	maps.Copy(l.where, here)
	return nil
}

// runtimes takes [runtimes] apart: default is a key of ours, every other one is a handler that the administrator named.
func (l *loader) runtimes(path string, here places, table map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if text, ok := table[name].(string); ok {
			l.config.Runtimes.Default = text
			continue
		}
		text, err := toml.Marshal(table[name])
		h := wireHandlerOf(l.config.Runtimes.Handlers[name])
		if err == nil {
			err = toml.Unmarshal(text, &h)
		}
		if err != nil {
			return here.refuse(path, "runtimes."+name, err.Error())
		}
		l.config.Runtimes.Handlers[name] = h.handler()
	}
	return nil
}

func (l *loader) flags(f Flags) {
	for _, flag := range []struct {
		value, key, name string
		to               *string
	}{
		{f.Root, "root", "--root", &l.config.Root},
		{f.State, "state", "--state", &l.config.State},
		{f.Socket, "socket", "--socket", &l.config.Socket},
		{f.LogLevel, "log_level", "--log-level", &l.config.LogLevel},
	} {
		if flag.value != "" {
			*flag.to = flag.value
			l.where[flag.key] = place{file: flag.name}
		}
	}
}

// syntax is an error of TOML itself.
func syntax(path string, err error) error {
	e := &Error{File: path, Why: strings.TrimPrefix(err.Error(), "toml: ")}
	var at *toml.DecodeError
	if errors.As(err, &at) {
		e.Line, _ = at.Position()
		e.Key = strings.Join(at.Key(), ".")
	}
	return e
}
