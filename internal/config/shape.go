package config

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
)

// shape holds one file against the types of wire.go. The decoder would do it too, but it neither knows the whole key of what
// is in an inline table nor says what is wanted.
type shape struct {
	path string
	here places
}

func (s shape) refuse(key, why string) error { return s.here.refuse(s.path, key, why) }

// table checks the table at key against a struct.
func (s shape) table(key string, table map[string]any, want reflect.Type) error {
	fields := map[string]reflect.Type{}
	for i := range want.NumField() {
		fields[want.Field(i).Tag.Get("toml")] = want.Field(i).Type
	}
	for _, full := range s.keys(key, table) {
		field, known := fields[full.name]
		if !known {
			return s.refuse(full.key, "unknown key")
		}
		if err := s.value(full.key, table[full.name], field); err != nil {
			return err
		}
	}
	return nil
}

// named is a key by its name in its table, and dotted.
type named struct{ name, key string }

// keys are those of a table in the order of their lines, so that the first mistake is named first.
func (s shape) keys(prefix string, table map[string]any) []named {
	var keys []named
	for name := range maps.Keys(table) {
		key := name
		if prefix != "" {
			key = prefix + "." + name
		}
		keys = append(keys, named{name, key})
	}
	slices.SortFunc(keys, func(a, b named) int {
		return cmp.Or(s.here[a.key].line-s.here[b.key].line, cmp.Compare(a.name, b.name))
	})
	return keys
}

func (s shape) value(key string, value any, want reflect.Type) error {
	switch want {
	case reflect.TypeFor[Duration]():
		return s.duration(key, value)
	case reflect.TypeFor[[]string]():
		return s.list(key, value)
	}
	if want.Kind() == reflect.Pointer { // a key that may be left out
		want = want.Elem()
	}
	fits, wanted := false, ""
	switch want.Kind() {
	case reflect.Struct, reflect.Map:
		if table, ok := value.(map[string]any); ok {
			return s.below(key, table, want)
		}
		wanted = "a table, [" + key + "]"
	case reflect.String:
		_, fits = value.(string)
		wanted = "a string in quotes"
	case reflect.Bool:
		_, fits = value.(bool)
		wanted = "true or false"
	default:
		_, fits = value.(int64)
		wanted = "a whole number without quotes"
	}
	if !fits {
		return s.refuse(key, "must be "+wanted)
	}
	return nil
}

func (s shape) duration(key string, value any) error {
	text, ok := value.(string)
	if !ok {
		return s.refuse(key, `must be a duration in quotes, such as "90s" or "2m"`)
	}
	var d Duration
	if err := d.UnmarshalText([]byte(text)); err != nil {
		return s.refuse(key, err.Error())
	}
	return nil
}

func (s shape) list(key string, value any) error {
	items, ok := value.([]any)
	for _, item := range items {
		if _, text := item.(string); !text {
			ok = false
		}
	}
	if !ok {
		return s.refuse(key, `must be a list of strings, such as ["a", "b"]`)
	}
	return nil
}

// below checks a table: [runtimes], whose keys are the administrator's, or one with fields.
func (s shape) below(key string, table map[string]any, want reflect.Type) error {
	if want.Kind() == reflect.Struct {
		return s.table(key, table, want)
	}
	for _, full := range s.keys(key, table) {
		if full.name == "default" {
			if _, ok := table[full.name].(string); !ok {
				return s.refuse(full.key, "must be a string, the name of a handler")
			}
			continue
		}
		handler, ok := table[full.name].(map[string]any)
		if !ok {
			return s.refuse(full.key, "unknown key; a handler is a table [runtimes."+full.name+"]")
		}
		if err := s.table(full.key, handler, reflect.TypeFor[wireHandler]()); err != nil {
			return err
		}
	}
	return nil
}
