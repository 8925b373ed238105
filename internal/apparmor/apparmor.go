// Package apparmor loads the AppArmor profile of containers that ask for none of their own, and says which profiles the
// kernel has.
//
// A profile is compiled by apparmor_parser, which distributions with AppArmor have; the kernel takes nothing else. A
// loaded profile stays when the daemon ends, because the containers under it go on.
package apparmor

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"berth/internal/fill"
)

// DefaultName is the name of the profile for RuntimeDefault.
const DefaultName = "berth-default"

// parseTimeout is how long the compiler may take, which is a fraction of a second on a machine that is not busy.
const parseTimeout = time.Minute

// Profiles are those of the kernel. Its methods may be called concurrently.
type Profiles struct {
	// State is a directory that is the daemon's own.
	State string
	// Families are the socket families that the default profile allows, by the names that AppArmor has for them.
	Families []string
	// Run runs a helper program until it has ended.
	Run func(ctx context.Context, name string, cmd *exec.Cmd) error

	list   string // the kernel's list; empty is the usual place
	parser string // empty is looked for
	mu     sync.Mutex
}

// listPath is where the kernel says which profiles it has.
const listPath = "/sys/kernel/security/apparmor/profiles"

// ErrNoParser says that this machine has no program that compiles profiles.
var ErrNoParser = errors.New("this machine has no apparmor_parser: install the package apparmor")

// Loaded reports whether the kernel has the profile.
func (p *Profiles) Loaded(name string) (bool, error) {
	path := p.list
	if path == "" {
		path = listPath
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for the AppArmor profile %s: the kernel does not show its profiles: mount "+
			"securityfs at /sys/kernel/security: %w", name, err)
	}
	if err != nil {
		return false, fmt.Errorf("look for the AppArmor profile %s: %w", name, err)
	}
	for line := range strings.Lines(string(text)) {
		// "name (mode)", where the name may have spaces
		if i := strings.LastIndex(line, " ("); i > 0 && line[:i] == name {
			return true, nil
		}
	}
	return false, nil
}

// Ensure makes sure that the kernel has the profile: the default one is loaded again where it was removed.
func (p *Profiles) Ensure(ctx context.Context, name string) error {
	loaded, err := p.Loaded(name)
	switch {
	case err != nil || loaded:
		return err
	case name == DefaultName:
		return p.Load(ctx)
	}
	return fmt.Errorf("AppArmor profile %s is not loaded on this node: load it with apparmor_parser on every node that "+
		"may run the pod", name)
}

// Load gives the kernel the default profile, unless it has this text of it already.
func (p *Profiles) Load(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, err := p.render(ownLabel())
	if err != nil {
		return err
	}
	loaded, err := p.Loaded(DefaultName)
	if err != nil {
		return err
	}
	note := filepath.Join(p.State, DefaultName+".apparmor")
	if old, err := os.ReadFile(note); err == nil && loaded && bytes.Equal(old, text) {
		return nil
	}
	if err := p.replace(ctx, text); err != nil {
		return fmt.Errorf("load the AppArmor profile %s: %w", DefaultName, err)
	}
	// Without the note the next start loads it again.
	_ = os.WriteFile(note, text, 0o600)
	return nil
}

// replace compiles a profile and loads it, in place of one of the same name.
func (p *Profiles) replace(ctx context.Context, text []byte) error {
	parser := p.parser
	if parser == "" {
		var err error
		if parser, err = FindParser(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, parseTimeout)
	defer cancel()
	var said bytes.Buffer
	cmd := exec.Command(parser, "--replace", "--skip-cache", "--quiet")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &said, &said
	if err := p.Run(ctx, "apparmor", cmd); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return nil
}

// FindParser returns the path of the compiler, or ErrNoParser. It looks also where a service's PATH may not lead.
func FindParser() (string, error) {
	for _, name := range []string{"apparmor_parser", "/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoParser
}

// ownLabel is the profile that the daemon itself, and so every monitor, runs under.
func ownLabel() string {
	for _, path := range []string{"/proc/self/attr/apparmor/current", "/proc/self/attr/current"} {
		if text, err := os.ReadFile(path); err == nil {
			return label(string(text))
		}
	}
	return unconfined
}

const unconfined = "unconfined"

// label takes the mode off "name (mode)". What is no AppArmor label, because another module answered, is unconfined.
func label(current string) string {
	name, mode, ok := strings.Cut(strings.Trim(current, "\x00\n"), " (")
	if !ok || !strings.HasSuffix(mode, ")") {
		return unconfined
	}
	return name
}

//go:embed profile.txt
var profileText string

// render is the default profile's text, for a daemon that runs under the profile named daemon.
func (p *Profiles) render(daemon string) ([]byte, error) {
	return fill.Text("profile", profileText, fill.Values{
		"Name": quote(DefaultName), "Daemon": quote(daemon), "Families": p.Families,
	})
}

// quote quotes a name with spaces or patterns in it for the parser.
func quote(name string) string {
	if !strings.ContainsAny(name, " \t\"\\*?[]{},") {
		return name
	}
	var out strings.Builder
	for _, r := range name {
		if strings.ContainsRune("\"\\*?[]{}", r) {
			out.WriteByte('\\')
		}
		out.WriteRune(r)
	}
	return `"` + out.String() + `"`
}
