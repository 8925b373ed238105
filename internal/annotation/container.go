package annotation

import (
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// What CRI has no words for, a client may ask for by annotations of a container. Users of Kubernetes cannot: a kubelet
// gives containers annotations of its own. Their values are lists in JSON.

// Tmpfs are the empty directories in memory that a container asks for, as spec.ParseTmpfs reads them.
func Tmpfs(all map[string]string) ([]string, error) { return list[string](all, KeyTmpfs) }

var rlimitName = regexp.MustCompile(`^RLIMIT_[A-Z]{2,16}$`)

// Ulimits are the limits of its processes that a container asks for, as a runtime is told them.
func Ulimits(all map[string]string) ([]specs.POSIXRlimit, error) {
	limits, err := list[specs.POSIXRlimit](all, KeyUlimits)
	for _, l := range limits {
		if !rlimitName.MatchString(l.Type) {
			return nil, invalid(KeyUlimits, l.Type, fmt.Errorf("not the name of a limit, such as RLIMIT_NOFILE"))
		}
	}
	return limits, err
}

// List is the value of an annotation that is a list.
func List[T any](items []T) (string, error) {
	text, err := json.Marshal(items)
	return string(text), err
}

func list[T any](all map[string]string, key string) (items []T, err error) {
	value := all[key]
	if value == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(value), &items); err != nil {
		return nil, invalid(key, value, err)
	}
	return items, nil
}
