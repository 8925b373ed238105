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

// parsePatterns parses patterns, in which * stands for any run of characters, ? for one and [ab] for one of those. One
// that is a whole reference stands for it however it is written: busybox for docker.io/library/busybox:latest.
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
			p.globs = append(p.globs, flat(one))
		}
	}
	return p
}

// Pinner is who says that images must not be collected.
type Pinner int

// The pinners.
const (
	Configured Pinner = iota // the configuration, by patterns
	Preloaded                // a directory of images that are to be there
	pinners
)

// pins are the names of images that must not be collected, by who has said so.
type pins [pinners]patterns

// has reports whether an image is pinned: by one of its names, or by its whole id.
func (p *pins) has(rec *ImageRecord) bool {
	names := rec.names()
	return slices.ContainsFunc(p[:], func(by patterns) bool {
		_, itself := by.exact[rec.ID]
		return itself || slices.ContainsFunc(names, by.match)
	})
}

// match reports whether one of the patterns names the reference.
func (p patterns) match(name string) bool {
	if _, ok := p.exact[name]; ok {
		return true
	}
	if slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		return true
	}
	if len(p.globs) == 0 {
		return false
	}
	name = flat(name)
	return slices.ContainsFunc(p.globs, func(glob string) bool {
		ok, err := path.Match(glob, name)
		return err == nil && ok
	})
}

// flat is a name or a pattern without path components, which a * of path.Match would stay within.
func flat(s string) string { return strings.ReplaceAll(s, "/", "\x00") }
