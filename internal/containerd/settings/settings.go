// Package settings turns the configuration of a containerd into one of Berth, and says of each setting what became of
// it. It reads files and writes none.
package settings

import (
	"cmp"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// The directories of what is copied, below that of Berth's configuration.
const (
	BaseSpecs = "base-specs"
	CertsD    = "certs.d"
)

// Where containerd and k3s have their configuration.
const (
	DefaultPath       = "/etc/containerd/config.toml"
	DefaultRegistries = "/etc/rancher/k3s/registries.yaml"
	dockerCerts       = "/etc/docker/certs.d"
)

// Options say what is converted.
type Options struct {
	Path       string // of config.toml; empty: none
	Registries string // of k3s' registries.yaml; empty: none
	// Look finds a program in the usual places of this machine.
	Look func(name string) (path string, err error)
	// Base reads a base spec as the daemon does, and notes each part that does not count, by its Key and the reason.
	Base func(text []byte) ([]Note, error)
	// Dir is an absolute path: where what is written goes.
	Dir string
	// Release is the version of the containerd that reads the files, such as 2.1.4; empty: nobody knows.
	Release string
	// Unit has UnitProperties of the service that runs containerd, as systemctl show prints them; empty: nothing is known.
	Unit string
	// SELinux says that this machine's kernel has SELinux on.
	SELinux bool
	// Verifiers is where containerd looks for programs that verify images unless it is told, and DockerCerts where it
	// looks for files of registries then, after certs.d beside config.toml. Empty: as it is there.
	Verifiers, DockerCerts string
}

// Result is what the settings become.
type Result struct {
	Version int    // of config.toml; 1 where it does not say
	Config  []byte // for a file of conf.d; nil where Berth's defaults do
	Bases   []File // for base-specs
	Hosts   []File // for certs.d
	// Credentials is a file that a kubelet reads credentials of registries from, as Docker keeps them; nil without any.
	Credentials []byte
	// Environment is what of the service's environment is one for that of Berth.
	Environment map[string]string
	Notes       []Note
}

// File is one that is to be written.
type File struct {
	Name string // below the directory of its kind
	Mode fs.FileMode
	Data []byte
}

// Note says what became of a setting.
type Note struct {
	File string
	Line int // 0 where it is in no line
	Key  string
	To   string // what it became; empty: it was not carried over
	Why  string // why not, or what is different
}

// String is a line for people.
func (n Note) String() string {
	at := n.File
	if n.Line > 0 {
		at = fmt.Sprintf("%s:%d", at, n.Line)
	}
	text := at + ": " + n.Key
	if n.To != "" {
		text += " → " + n.To
	} else {
		text += " is not carried over"
	}
	if n.Why != "" {
		text += ": " + n.Why
	}
	return text
}

// conversion is one in progress.
type conversion struct {
	tree       map[string]any // Berth's configuration
	notes      []Note
	stream     map[string]string // keys of streaming over TLS
	selinux    bool              // as Options.SELinux
	from       string            // the directory of config.toml, which goes when containerd does
	off        map[string]bool   // plugins that are disabled, by the names that plugins gives them
	runtimes   *runtimes
	registries *registries
}

// Convert reads the files, and turns them into Berth's.
func Convert(o Options) (*Result, error) {
	c := &conversion{tree: map[string]any{}, stream: map[string]string{}, off: map[string]bool{},
		selinux: o.SELinux}
	if o.Path != "" {
		c.from = filepath.Dir(o.Path)
	}
	c.runtimes = &runtimes{c: c, look: o.Look, base: o.Base, dir: filepath.Join(o.Dir, BaseSpecs),
		tables: map[string]keysOfRuntime{}}
	c.registries = &registries{c: c, mirrors: map[string][]string{}, hosts: map[string]*hostTable{}}
	r := &Result{}
	if o.Path != "" {
		all, version, err := c.read(o.Path, o.Release)
		if err != nil {
			return nil, err
		}
		r.Version = version
		all = append(all, c.unsaid(o.Path, all, version, o.Release)...)
		for _, s := range all {
			if s.matches("disabled_plugins") {
				disabled(c, s)
			}
		}
		for _, s := range all {
			if !c.off[s.parts[0]] {
				c.apply(s)
			}
		}
		if c.runtimes.finish(o.Path); c.runtimes.err != nil {
			return nil, c.runtimes.err
		}
		r.Bases = c.runtimes.bases
		finishStreaming(c, o.Path)
		finishVerifiers(c, o.Path, cmp.Or(o.Verifiers, verifiers))
		if r.Hosts, err = c.registries.certsD(o.Path, cmp.Or(o.DockerCerts, dockerCerts)); err != nil {
			return nil, err
		}
	}
	if o.Registries != "" {
		if err := c.registries.yaml(o.Registries); err != nil {
			return nil, err
		}
	}
	r.Hosts = append(r.Hosts, c.registries.files(r.Hosts)...)
	r.Credentials = c.registries.credentials()
	r.Environment = c.unit(o.Unit)
	if len(c.tree) > 0 {
		text, err := toml.Marshal(c.tree)
		if err != nil {
			return nil, err
		}
		r.Config = append([]byte("# Written by berth migrate containerd, from "+o.Path+".\n\n"), text...)
	}
	r.Notes = c.notes
	slices.SortStableFunc(r.Notes, func(a, b Note) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key))
	})
	return r, nil
}

// apply finds the rule of a setting.
func (c *conversion) apply(s setting) {
	for _, r := range rules {
		if !s.matches(r.key) {
			continue
		}
		switch {
		case r.take != nil && !s.isOneOf(r.usual):
			r.take(c, s)
		case r.take == nil && r.why != "" && !s.isZero() && !s.isOneOf(r.usual):
			c.drop(s, r.why)
		}
		return
	}
	if !s.isZero() {
		c.drop(s, "Berth knows no such setting")
	}
}

// drop notes that a setting is not carried over.
func (c *conversion) drop(s setting, why string) {
	c.notes = append(c.notes, Note{File: s.file, Line: s.line, Key: s.text(), Why: why})
}

// note notes why something that is no setting of a line is not carried over.
func (c *conversion) note(file, key, why string) {
	c.notes = append(c.notes, Note{File: file, Key: key, Why: why})
}

// carry notes what a setting became.
func (c *conversion) carry(s setting, to, why string) {
	c.notes = append(c.notes, Note{File: s.file, Line: s.line, Key: s.text(), To: to, Why: why})
}

// stays says of files that are beside config.toml, and not copied, that they have to stay there.
func (c *conversion) stays(paths ...string) string {
	for _, path := range paths {
		if rel, err := filepath.Rel(c.from, path); err == nil && filepath.IsLocal(rel) && c.from != "" {
			return "it has to stay in " + c.from
		}
	}
	return ""
}

// set sets a key of Berth's configuration.
func (c *conversion) set(key string, value any) {
	table := c.tree
	parts := strings.Split(key, ".")
	for _, part := range parts[:len(parts)-1] {
		below, ok := table[part].(map[string]any)
		if !ok {
			below = map[string]any{}
			table[part] = below
		}
		table = below
	}
	table[parts[len(parts)-1]] = value
}

// become sets a key of Berth's configuration, and notes it.
func (c *conversion) become(s setting, key string, value any) {
	c.set(key, value)
	why := ""
	if s.unsaid {
		why = "as containerd has it unless it is told otherwise"
	}
	c.carry(s, fmt.Sprintf("%s = %s", key, literal(value)), why)
}

// literal is a value as TOML has it.
func literal(value any) string {
	text, err := toml.Marshal(map[string]any{"v": value})
	if err != nil {
		return fmt.Sprint(value)
	}
	return strings.TrimSpace(strings.TrimPrefix(string(text), "v = "))
}
