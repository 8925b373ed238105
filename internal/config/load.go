package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/limit"
)

// Flags is what the daemon's command line says. An empty string was not given.
type Flags struct {
	Path    string // the configuration file; empty is DefaultPath
	PathSet bool   // the file was named, so it must be there
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

// Load reads the file, then the conf.d/*.toml beside it in the order of their names, then the flags. It does not look
// at what the paths lead to.
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
	text, err := limit.ReadFile(path, limit.ConfigFile)
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
	if err := (reading{path, here, l.config}).table("", said); err != nil {
		return err
	}
	maps.Copy(l.where, here)
	return nil
}

// reading is one file on its way into a configuration.
type reading struct {
	path   string
	here   places
	config *Config
}

func (r reading) refuse(key, why string) error { return r.here.refuse(r.path, key, why) }

// table reads what the file says in a table, "" at the top.
func (r reading) table(prefix string, said map[string]any) error {
	for _, at := range r.inOrder(prefix, said) {
		value := said[at.name]
		if k, ok := find(keys, at.key); ok {
			if why := k.read(r.config, value); why != "" {
				return r.refuse(at.key, why)
			}
			continue
		}
		below, ok := value.(map[string]any)
		switch {
		case prefix == "runtimes" && !ok:
			return r.refuse(at.key, "unknown key; a handler is a table ["+at.key+"]")
		case prefix == "runtimes":
			if err := r.handler(at, below); err != nil {
				return err
			}
		case !isTable(keys, at.key):
			return r.refuse(at.key, "unknown key")
		case !ok:
			return r.refuse(at.key, "must be a table, ["+at.key+"]")
		default:
			if err := r.table(at.key, below); err != nil {
				return err
			}
		}
	}
	return nil
}

// handler reads the table of a handler over what is known of it.
func (r reading) handler(at located, said map[string]any) error {
	h, known := r.config.Runtimes.Handlers[at.name]
	if !known {
		h = newHandler()
	}
	if err := r.handlerTable(&h, at.key, "", said); err != nil {
		return err
	}
	r.config.Runtimes.Handlers[at.name] = h
	return nil
}

// handlerTable reads the table at a key, which is that of a handler, or one in it. Then prefix is its name there, with
// a dot.
func (r reading) handlerTable(h *Handler, key, prefix string, said map[string]any) error {
	for _, in := range r.inOrder(key, said) {
		name := prefix + in.name
		if k, ok := find(handlerKeys, name); ok {
			if why := k.read(h, said[in.name]); why != "" {
				return r.refuse(in.key, why)
			}
			continue
		}
		below, ok := said[in.name].(map[string]any)
		switch {
		case !isTable(handlerKeys, name):
			return r.refuse(in.key, "unknown key")
		case !ok:
			return r.refuse(in.key, "must be a table, ["+in.key+"]")
		}
		if err := r.handlerTable(h, in.key, name+".", below); err != nil {
			return err
		}
	}
	return nil
}

// located is a key by its name in its table, and dotted.
type located struct{ name, key string }

// inOrder are the keys of a table in the order of their lines, so that the first mistake is named first.
func (r reading) inOrder(prefix string, table map[string]any) []located {
	var all []located
	for name := range table {
		key := name
		if prefix != "" {
			key = prefix + "." + name
		}
		all = append(all, located{name, key})
	}
	slices.SortFunc(all, func(a, b located) int {
		return cmp.Or(r.here[a.key].line-r.here[b.key].line, cmp.Compare(a.name, b.name))
	})
	return all
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
