package catalog

import (
	"path"
	"slices"
	"strings"

	"berth/internal/image/reference"
)

// patterns are names of images with * in them, as the configuration has them, parsed once.
type patterns struct {
	exact    map[string]struct{}
	prefixes []string
	globs    []string
}

// parsePatterns parses patterns, in which * stands for any run of characters within a path component and a final *
// for anything. One that is a whole reference stands for it however it is written: busybox for
// docker.io/library/busybox:latest.
func parsePatterns(list []string) patterns {
	p := patterns{exact: map[string]struct{}{}}
	for _, one := range list {
		p.exact[one] = struct{}{}
		if ref, err := reference.Parse(one); err == nil {
			p.exact[ref.String()] = struct{}{}
		}
		prefix, ok := strings.CutSuffix(one, "*")
		if ok {
			p.prefixes = append(p.prefixes, prefix)
		}
		if strings.ContainsAny(prefix, `*?[\`) {
			p.globs = append(p.globs, one)
		}
	}
	return p
}

// match reports whether one of the patterns names the reference.
func (p patterns) match(name string) bool {
	if _, ok := p.exact[name]; ok {
		return true
	}
	return slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) ||
		slices.ContainsFunc(p.globs, func(glob string) bool {
			ok, err := path.Match(glob, name)
			return err == nil && ok
		})
}
