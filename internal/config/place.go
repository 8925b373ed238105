package config

import (
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// place is where a key was set.
type place struct {
	file string // or the flag
	line int    // 0 for a flag
}

// places tells where each key, dotted, was set.
type places map[string]place

// refuse is an error about a key at the place that set it, or set the table around it, or in path when none did.
func (p places) refuse(path, key, why string) error {
	for k := key; k != ""; {
		if at, ok := p[k]; ok {
			return &Error{File: at.file, Line: at.line, Key: key, Why: why}
		}
		k = k[:max(0, strings.LastIndexByte(k, '.'))]
	}
	return &Error{File: path, Key: key, Why: why}
}

// locate finds the line of every key and table of a file that the decoder takes.
func locate(path string, text []byte) (places, error) {
	var p unstable.Parser
	p.Reset(text)
	l := locator{path: path, parser: &p, found: places{}}
	var table string
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = l.key("", e)
		case unstable.KeyValue:
			l.value(table, e)
		}
	}
	if err := p.Error(); err != nil {
		return nil, err
	}
	return l.found, nil
}

type locator struct {
	path   string
	parser *unstable.Parser
	found  places
}

// key notes the key of a node, and of the tables on the way to it, and returns it.
func (l *locator) key(table string, n *unstable.Node) string {
	key := table
	for it := n.Key(); it.Next(); {
		part := it.Node()
		if key != "" {
			key += "."
		}
		key += string(part.Data)
		if _, known := l.found[key]; !known {
			l.found[key] = place{file: l.path, line: l.parser.Shape(part.Raw).Start.Line}
		}
	}
	return key
}

func (l *locator) value(table string, n *unstable.Node) {
	key := l.key(table, n)
	if n.Value().Kind != unstable.InlineTable {
		return
	}
	for it := n.Value().Children(); it.Next(); {
		l.value(key, it.Node())
	}
}
