package settings

import (
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// yaml reads what k3s and RKE2 have of registries in a file of their own.
func (r *registries) yaml(path string) error {
	raw, err := readFile(path)
	if err != nil {
		return err
	}
	var file struct {
		Mirrors map[string]map[string]any            `yaml:"mirrors"`
		Configs map[string]map[string]map[string]any `yaml:"configs"`
		Auths   map[string]map[string]any            `yaml:"auths"`
	}
	if err := yaml.Unmarshal(raw, &file); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r.from = path
	at := func(parts ...string) setting {
		return setting{file: path, written: parts, parts: append([]string{"cri", "registry"}, parts...)}
	}
	for _, host := range slices.Sorted(maps.Keys(file.Mirrors)) {
		r.k3sMirror(at, host, file.Mirrors[host])
	}
	for _, host := range slices.Sorted(maps.Keys(file.Configs)) {
		for _, table := range slices.Sorted(maps.Keys(file.Configs[host])) {
			for _, key := range slices.Sorted(maps.Keys(file.Configs[host][table])) {
				s := at("configs", host, table, key)
				s.value = file.Configs[host][table][key]
				r.hostSetting(s, host, key)
			}
		}
	}
	for _, host := range slices.Sorted(maps.Keys(file.Auths)) {
		for _, key := range slices.Sorted(maps.Keys(file.Auths[host])) {
			s := at("auths", host, key)
			s.value = file.Auths[host][key]
			r.hostSetting(s, host, key)
		}
	}
	return nil
}

func (r *registries) k3sMirror(at func(...string) setting, host string, mirror map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(mirror)) {
		s := at("mirrors", host, key)
		switch s.value = mirror[key]; {
		case s.isZero():
		case key == "endpoint":
			if one, ok := s.value.(string); ok {
				s.value = []any{one}
			}
			r.mirror(s, host)
		case key == "rewrite":
			r.c.drop(s, "a mirror is asked for the same repositories as the registry; let the address of the mirror "+
				"have the rest of the path, if that is all")
		default:
			r.c.drop(s, "Berth knows no such setting")
		}
	}
}
