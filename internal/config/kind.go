package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kind is what values of a type T look like in a file, and which of them can work.
type kind[T any] struct {
	name  string                     // for people, such as "duration"
	read  func(said any) (T, string) // of what TOML gave; the string says why it is no such value
	text  func(T) string             // as a file has it; "" leaves the key out
	check func(T) string             // why the value cannot work; nil where every value can
}

// with adds a check, which comes after those that the kind has.
func (k kind[T]) with(name string, check func(T) string) kind[T] {
	before := k.check
	k.name, k.check = name, func(v T) string {
		if before != nil {
			if why := before(v); why != "" {
				return why
			}
		}
		return check(v)
	}
	return k
}

var (
	text = kind[string]{name: "string", read: as[string]("a string in quotes"), text: quote}
	// path is absolute and clean: names on the host derive from paths.
	path = text.with("absolute path", func(p string) string { return checkPath(p, false) })
	// optionalPath may be empty.
	optionalPath = text.with("absolute path, or empty", func(p string) string { return checkPath(p, true) })

	boolean = kind[bool]{name: "true or false", read: as[bool]("true or false"), text: strconv.FormatBool}
	// optionalBoolean may be left out.
	optionalBoolean = kind[*bool]{name: "true or false, or left out", read: func(said any) (*bool, string) {
		v, why := boolean.read(said)
		return &v, why
	}, text: func(v *bool) string {
		if v == nil {
			return ""
		}
		return boolean.text(*v)
	}}

	list = kind[[]string]{name: "list of strings", read: readList, text: listText}
	// optionalList makes no difference between an empty list and none.
	optionalList = kind[[]string]{name: list.name, read: func(said any) ([]string, string) {
		v, why := readList(said)
		if len(v) == 0 {
			v = nil
		}
		return v, why
	}, text: listText}
	paths = list.with("list of absolute paths", func(v []string) string {
		for _, p := range v {
			if why := checkPath(p, false); why != "" {
				return why
			}
		}
		return ""
	})

	anyDuration = kind[Duration]{name: "duration", read: readDuration, text: func(d Duration) string {
		return quote(d.String())
	}}
	duration = anyDuration.with("duration, more than 0s", func(d Duration) string {
		if d.Duration <= 0 {
			return fmt.Sprintf("%v is not more than nothing", d)
		}
		return ""
	})
	// optionalDuration may be 0s: none, or another key says it.
	optionalDuration = anyDuration.with("duration", func(d Duration) string {
		if d.Duration < 0 {
			return fmt.Sprintf("%v is less than nothing", d)
		}
		return ""
	})
)

// oneOf takes no other words.
func oneOf(words ...string) kind[string] {
	return text.with(orList(words), func(v string) string {
		if !slices.Contains(words, v) {
			return fmt.Sprintf("%q is none of %s", v, strings.Join(words, ", "))
		}
		return ""
	})
}

// oneOfOrEmpty takes no other words, and may be empty.
func oneOfOrEmpty(words ...string) kind[string] {
	k := oneOf(words...)
	check := k.check
	k.name += ", or empty"
	k.check = func(v string) string {
		if v == "" {
			return ""
		}
		return check(v)
	}
	return k
}

func orList(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// number is a whole number. unit is what is counted; "" where the key's name says it.
func number[N int | int64](unit string) kind[N] {
	return kind[N]{
		name: strings.TrimSuffix("whole number of "+unit, " of "),
		read: func(said any) (N, string) {
			v, why := as[int64]("a whole number without quotes")(said)
			return N(v), why
		},
		text: func(v N) string { return strconv.FormatInt(int64(v), 10) },
	}
}

// between is a number with bounds, which it may equal.
func between[N int | int64](unit string, lowest, highest N) kind[N] {
	k := number[N](unit)
	return k.with(fmt.Sprintf("%s, %d to %d", k.name, lowest, highest), func(v N) string {
		if v < lowest || v > highest {
			return fmt.Sprintf("%d is not between %d and %d", v, lowest, highest)
		}
		return ""
	})
}

// mostProcesses is the kernel's PID_MAX_LIMIT: pids.max takes no more.
const mostProcesses = 4 << 20

// processes is a number of processes. why says what the lowest one means.
func processes(lowest int, why func(v int) string) kind[int] {
	k := number[int]("processes")
	return k.with(fmt.Sprintf("%s, %d to %d", k.name, lowest, mostProcesses), func(v int) string {
		switch {
		case v < lowest:
			return why(v)
		case v > mostProcesses:
			return fmt.Sprintf("%d is more than %d, which is all that the kernel has", v, mostProcesses)
		}
		return ""
	})
}

// as reads what TOML has as a T.
func as[T any](wanted string) func(any) (T, string) {
	return func(said any) (T, string) {
		v, ok := said.(T)
		if !ok {
			return v, "must be " + wanted
		}
		return v, ""
	}
}

func readList(said any) ([]string, string) {
	items, ok := said.([]any)
	out := make([]string, 0, len(items))
	for _, item := range items {
		s, isText := item.(string)
		ok = ok && isText
		out = append(out, s)
	}
	if !ok {
		return nil, `must be a list of strings, such as ["a", "b"]`
	}
	return out, ""
}

func readDuration(said any) (d Duration, why string) {
	s, ok := said.(string)
	if !ok {
		return d, `must be a duration in quotes, such as "90s" or "2m"`
	}
	if err := d.UnmarshalText([]byte(s)); err != nil {
		return d, err.Error()
	}
	return d, ""
}

// seconds is a duration for defaults.
func seconds(n int) Duration { return Duration{time.Duration(n) * time.Second} }

func checkPath(value string, optional bool) string {
	switch {
	case value == "" && optional:
		return ""
	case value == "":
		return "is empty"
	case !filepath.IsAbs(value):
		return fmt.Sprintf("%q is not an absolute path", value)
	case filepath.Clean(value) != value:
		return fmt.Sprintf("write %q as %q", value, filepath.Clean(value))
	case value == "/":
		return "cannot be the root directory of the machine"
	case strings.ContainsAny(value, "\x00\n"):
		return fmt.Sprintf("%q has a character that no path here may have", value)
	}
	return ""
}

func listText(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = quote(v)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// quote writes a basic TOML string, whose escapes are not quite Go's.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
