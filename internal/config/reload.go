package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

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

// Reload is what holds in a running daemon when next takes the place of c: next, but for the keys that need a restart.
// The changes, in the order of their keys, are those from c to next.
func (c *Config) Reload(next *Config) (*Config, []Change) {
	var changes []Change
	was, is := c.values(), next.values()
	for _, key := range sortedUnion(was, is) {
		if was[key] != is[key] && !silent(key, was[key], is[key]) {
			changes = append(changes, Change{Key: key, Old: was[key], New: is[key], Restart: !isLive(key)})
		}
	}
	merged := *next
	for _, k := range keys {
		if k.restart {
			k.copy(&merged, c)
		}
	}
	return &merged, changes
}

// silent says that a key came or went with its handler, and says nothing but the default.
func silent(name, old, new string) bool {
	h := newHandler()
	below, ofHandler := strings.CutPrefix(name, "runtimes.")
	_, in, _ := strings.Cut(below, ".")
	k, ok := find(handlerKeys, in)
	return ok && ofHandler && k.name != "path" && (old == "" || new == "") && old+new == k.text(&h)
}

// isLive reports whether a running daemon takes another value of a key over. It does those of handlers: they hold for
// new pods.
func isLive(name string) bool {
	k, ok := find(keys, name)
	return !ok || !k.restart
}

// values are all keys with their values as in a file.
func (c *Config) values() map[string]string {
	all := map[string]string{}
	for _, k := range keys {
		all[k.name] = k.text(c)
	}
	for name, h := range c.Runtimes.Handlers {
		for _, k := range handlerKeys {
			all["runtimes."+name+"."+k.name] = k.text(&h)
		}
	}
	return all
}

func sortedUnion(a, b map[string]string) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}
