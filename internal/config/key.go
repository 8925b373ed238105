package config

import (
	"slices"
	"strings"
)

// key is a row of the table of keys: all that Berth knows of one. O is what it is a key of: Config, or Handler.
// Reading, checking, printing, reloading, explaining and documenting a key come from its row.
type key[O any] struct {
	name string // dotted, as in Config; of a Handler without the table's name
	// comment is printed above the key, in lines. A key without one belongs to those before it.
	comment string
	// meaning is what the documentation says of it, in Markdown.
	meaning string
	// unset is what the documentation says in place of an empty default, such as "probed".
	unset string
	// restart says that a running daemon keeps the old value.
	restart bool
	field[O]
}

// field is where the value of a key is, and what it may be.
type field[O any] interface {
	kindName() string
	reset(o *O)                       // to the default
	copy(to, from *O)                 // the value
	read(o *O, said any) (why string) // what TOML gave; why it is no such value
	check(o *O) (why string)          // why the value cannot work
	text(o *O) string                 // as a file has it; "" leaves the key out
}

// typed is a field of type T.
type typed[O, T any] struct {
	at       func(*O) *T
	kind     kind[T]
	standard T
}

// of makes a field: where it is, of which kind, and its default.
func of[O, T any](at func(*O) *T, k kind[T], standard T) field[O] {
	return typed[O, T]{at, k, standard}
}

func (f typed[O, T]) kindName() string { return f.kind.name }
func (f typed[O, T]) reset(o *O)       { *f.at(o) = f.standard }
func (f typed[O, T]) copy(to, from *O) { *f.at(to) = *f.at(from) }
func (f typed[O, T]) text(o *O) string { return f.kind.text(*f.at(o)) }

func (f typed[O, T]) read(o *O, said any) string {
	v, why := f.kind.read(said)
	if why == "" {
		*f.at(o) = v
	}
	return why
}

func (f typed[O, T]) check(o *O) string {
	if f.kind.check == nil {
		return ""
	}
	return f.kind.check(*f.at(o))
}

// table is the table that a key is in, "" at the top, and the key's name in it.
func (k key[O]) table() (table, name string) {
	i := strings.LastIndexByte(k.name, '.')
	return k.name[:max(0, i)], k.name[i+1:]
}

// isTable reports whether some of the keys are in a table of this name.
func isTable[O any](rows []key[O], name string) bool {
	return slices.ContainsFunc(rows, func(k key[O]) bool { return strings.HasPrefix(k.name, name+".") })
}

// find returns the row of a key.
func find[O any](rows []key[O], name string) (key[O], bool) {
	i := slices.IndexFunc(rows, func(k key[O]) bool { return k.name == name })
	if i < 0 {
		return key[O]{}, false
	}
	return rows[i], true
}

// Default is the configuration without any file.
func Default() *Config {
	c := &Config{}
	for _, k := range keys {
		k.reset(c)
	}
	c.Runtimes.Handlers = map[string]Handler{}
	return c
}

// newHandler is one of which nothing is said.
func newHandler() Handler {
	var h Handler
	for _, k := range handlerKeys {
		k.reset(&h)
	}
	return h
}

// handlerTable begins the names of keys of handlers where no handler is meant.
const handlerTable = "runtimes.<name>."

// Key is what a person may know of a key.
type Key struct {
	Name    string // dotted; <name> stands for that of a handler
	Kind    string // what its value is, with bounds
	Default string // as in a file; "" where there is none
	Unset   string // what holds where the default is empty, in words; may be empty
	Meaning string // in Markdown
	Live    bool   // a running daemon takes another value over
}

// Keys are all keys, in the order of the documentation.
func Keys() []Key {
	var out []Key
	c, h := Default(), newHandler()
	for _, k := range keys {
		out = append(out, describe(k, "", c))
		if k.name == "runtimes.default" {
			for _, k := range handlerKeys {
				out = append(out, describe(k, handlerTable, &h))
			}
		}
	}
	return out
}

// Value returns the value of a key as a file has it, "" when there is none, or no such key. It knows no keys of
// handlers.
func (c *Config) Value(name string) string {
	k, ok := find(keys, name)
	if !ok {
		return ""
	}
	return k.text(c)
}

func describe[O any](k key[O], prefix string, standard *O) Key {
	return Key{Name: prefix + k.name, Kind: k.kindName(), Default: k.text(standard), Unset: k.unset, Meaning: k.meaning,
		Live: !k.restart}
}

// Row is the key's row in the documentation's table.
func (k Key) Row() string {
	standard := "`" + strings.Trim(k.Default, `"`) + "`"
	if standard == "``" {
		standard = k.Unset
	}
	if standard != "" {
		standard += " "
	}
	return "| `" + k.Name + "` | " + standard + "| " + k.Meaning + " |"
}
