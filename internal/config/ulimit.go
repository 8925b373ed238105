package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Ulimit is a limit of a process (setrlimit(2)).
type Ulimit struct {
	Name       string // "nofile", without RLIMIT_
	Soft, Hard uint64 // math.MaxUint64 is none
}

// ulimitNames are the limits that Linux has, by the names of `ulimit` and of other runtimes' configurations.
var ulimitNames = []string{
	"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
	"rttime", "sigpending", "stack",
}

// ParseUlimit reads a limit: NAME=VALUE, or NAME=SOFT:HARD, where a value is a number or "unlimited".
func ParseUlimit(text string) (Ulimit, error) {
	name, values, ok := strings.Cut(text, "=")
	if !ok {
		return Ulimit{}, fmt.Errorf("%q is no limit: write name=value or name=soft:hard, such as nofile=1024:524288", text)
	}
	if !slices.Contains(ulimitNames, name) {
		return Ulimit{}, fmt.Errorf("%q: there is no limit %q; there are %s", text, name, strings.Join(ulimitNames, ", "))
	}
	soft, hard, two := strings.Cut(values, ":")
	if !two {
		hard = soft
	}
	u := Ulimit{Name: name}
	for _, v := range []struct {
		text string
		to   *uint64
	}{{soft, &u.Soft}, {hard, &u.Hard}} {
		n, err := ulimitValue(v.text)
		if err != nil {
			return Ulimit{}, fmt.Errorf("%q: %q is neither a number nor unlimited", text, v.text)
		}
		*v.to = n
	}
	if u.Soft > u.Hard {
		return Ulimit{}, fmt.Errorf("%q: the soft limit is above the hard one", text)
	}
	return u, nil
}

func ulimitValue(s string) (uint64, error) {
	if s == "unlimited" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(s, 10, 64)
}
