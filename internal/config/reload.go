package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// live are the keys, and the beginnings of keys, whose values a running daemon takes over. All others need a restart.
var live = []string{
	"log_level", "cni.", "registry.", "images.max_", "images.stall_timeout", "images.pinned", "image_verifier.", "runtimes.", "pods.", "limits.",
	"timeouts.runtime_create",
}

// Change is a key that another configuration gives another value.
type Change struct {
	Key     string `json:"key"`
	Old     string `json:"old,omitempty"` // as in a file; empty when the key was not there
	New     string `json:"new,omitempty"`
	Restart bool   `json:"restart,omitempty"` // it is not in force before the daemon's next start
}

func (c Change) String() string {
	show := func(v string) string {
		if v == "" {
			return "(none)"
		}
		return v
	}
	text := fmt.Sprintf("%s: %s → %s", c.Key, show(c.Old), show(c.New))
	if c.Restart {
		text += ", after a restart"
	}
	return text
}

// Reload is what holds in a running daemon when next takes the place of c: next, but for the keys that need a restart. The
// changes, in the order of their keys, are those from c to next.
func (c *Config) Reload(next *Config) (*Config, []Change) {
	var changes []Change
	was, is := c.values(), next.values()
	for _, key := range sortedUnion(was, is) {
		if was[key] != is[key] && !silent(key, was[key], is[key]) {
			changes = append(changes, Change{Key: key, Old: was[key], New: is[key], Restart: !isLive(key)})
		}
	}
	merged := *next
	w, old := newWire(next), newWire(c)
	keep(reflect.ValueOf(w).Elem(), reflect.ValueOf(old).Elem(), "")
	w.into(&merged)
	return &merged, changes
}

// silent says that a key came or went with its handler, and says nothing but the default.
func silent(key, old, new string) bool {
	name := key[strings.LastIndexByte(key, '.')+1:]
	defaults := map[string]string{}
	gather(defaults, "", reflect.ValueOf(wireHandlerOf(wireHandler{}.handler())))
	return strings.HasPrefix(key, "runtimes.") && name != "path" && (old == "" || new == "") && old+new == defaults[name]
}

func isLive(key string) bool {
	return slices.ContainsFunc(live, func(l string) bool { return key == l || strings.HasPrefix(key, l) && !isWord(l) })
}

// isWord says that l is a whole key, and not the beginning of some.
func isWord(l string) bool { return !strings.HasSuffix(l, ".") && !strings.HasSuffix(l, "_") }

// keep puts into w what of old needs a restart.
func keep(w, old reflect.Value, prefix string) {
	each(w.Type(), func(i int, name string, table bool) {
		switch {
		case table:
			keep(w.Field(i), old.Field(i), prefix+name+".")
		case !isLive(prefix + name):
			w.Field(i).Set(old.Field(i))
		}
	})
}

// each calls fn for the keys of a table, which the runtimes are not.
func each(t reflect.Type, fn func(i int, name string, table bool)) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type.Kind() != reflect.Map {
			fn(i, f.Tag.Get("toml"), f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[Duration]())
		}
	}
}

// values are all keys with their values as in a file.
func (c *Config) values() map[string]string {
	all := map[string]string{}
	gather(all, "", reflect.ValueOf(newWire(c)).Elem())
	if c.Runtimes.Default != "" {
		all["runtimes.default"] = quote(c.Runtimes.Default)
	}
	for name, h := range c.Runtimes.Handlers {
		gather(all, "runtimes."+name+".", reflect.ValueOf(wireHandlerOf(h)))
	}
	return all
}

func gather(all map[string]string, prefix string, table reflect.Value) {
	each(table.Type(), func(i int, name string, inner bool) {
		v := table.Field(i)
		if inner {
			gather(all, prefix+name+".", v)
			return
		}
		switch x := v.Interface().(type) {
		case string:
			all[prefix+name] = quote(x)
		case Duration:
			all[prefix+name] = quote(x.String())
		case []string:
			all[prefix+name] = list(x)
		case *bool:
			all[prefix+name] = "" // the key is not there
			if x != nil {
				all[prefix+name] = strconv.FormatBool(*x)
			}
		default:
			all[prefix+name] = fmt.Sprint(x)
		}
	})
}

func sortedUnion(a, b map[string]string) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}
