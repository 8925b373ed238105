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
	// Off says that the node's configuration wants no default profile.
	Off bool
	// NoAdmin says that what this process runs cannot have CAP_MAC_ADMIN, without which the kernel takes no profile.
	NoAdmin bool
	// Run runs a helper program until it has ended.
	Run func(ctx context.Context, name string, cmd *exec.Cmd) error

	list   string // the kernel's list; empty is the usual place
	parser string // empty is looked for

	mu      sync.Mutex
	loading *loading  // the load that is under way; nil when none is
	current bool      // the profile that the kernel has of the name has this text
	failed  error     // of the last load
	tried   time.Time // when the last load ended
}

// loading is a load of the default profile. Whoever needs it meanwhile waits for it.
type loading struct {
	done    chan struct{}
	err     error // after done
	aborted bool  // after done: who began it did not wait for its end
}

// retryStale is how long a profile of another release's text is left in force after a load of this one's has failed.
const retryStale = 10 * time.Minute

// listPath is where the kernel says which profiles it has.
const listPath = "/sys/kernel/security/apparmor/profiles"

// ErrNoParser says that this machine has no program that compiles profiles.
var ErrNoParser = errors.New("this machine has no apparmor_parser: install the package apparmor")

var (
	errOff     = errors.New(`the configuration has apparmor = "off"`)
	errNoAdmin = errors.New("this daemon may load no AppArmor profile: its bounding set is without CAP_MAC_ADMIN")
)

// Default returns the profile of containers that ask for none or for RuntimeDefault: DefaultName, or "" where the
// kernel does not have it and this machine lacks what loads it. It looks each time, since a package may bring that.
func (p *Profiles) Default() string {
	if p.lacks() != nil {
		return ""
	}
	return DefaultName
}

// lacks says what this machine lacks to have the default profile; nil where it lacks nothing, though a load may fail.
// A process that the kernel shows no profiles may not load any either.
func (p *Profiles) lacks() error {
	if p.Off {
		return errOff
	}
	loaded, err := p.Loaded(DefaultName)
	switch {
	case loaded:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return err
	case p.NoAdmin:
		return errNoAdmin
	}
	_, err = p.findParser()
	return err
}

// Status is what becomes of containers that ask for no profile or for RuntimeDefault.
type Status struct {
	Profile string // what they run under; empty: nothing
	Problem error  // what a person should look at
}

// Status tells what the next container gets, without loading anything.
func (p *Profiles) Status() Status {
	if p.Off {
		return Status{}
	}
	failed := p.lastFailure()
	loaded, err := p.Loaded(DefaultName)
	switch lacks := p.lacks(); {
	case lacks != nil:
		return Status{Problem: fmt.Errorf("containers that ask for no AppArmor profile run without one, and those that ask "+
			"for RuntimeDefault are refused: %w", lacks)}
	case loaded && failed != nil:
		return Status{DefaultName, fmt.Errorf("containers run under the AppArmor profile of another release: %w", failed)}
	case loaded:
		return Status{Profile: DefaultName}
	case err == nil:
		err = failed
	}
	if err != nil {
		err = fmt.Errorf("containers that are to run under the AppArmor profile %s are refused: %w", DefaultName, err)
	}
	return Status{DefaultName, err}
}

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
	if errors.Is(err, fs.ErrPermission) {
		return false, fmt.Errorf("look for the AppArmor profile %s: the kernel does not show this daemon its profiles, as "+
			"in a user namespace: %w", name, err)
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

// Ensure makes sure that the kernel has the profile: the default one is loaded where it is not, and where it has the
// text of another release, as far as that can be had.
func (p *Profiles) Ensure(ctx context.Context, name string) error {
	loaded, err := p.Loaded(name)
	switch {
	case err != nil:
		return err
	case name == DefaultName && !loaded:
		return p.Load(ctx)
	case name == DefaultName && p.stale():
		_ = p.Load(ctx) // the text of another release confines, too; Status tells of it
	}
	if loaded {
		return nil
	}
	return fmt.Errorf("AppArmor profile %s is not loaded on this node: load it with apparmor_parser on every node that "+
		"may run the pod", name)
}

// Load gives the kernel the default profile, unless it has this text of it already. There is one load at a time, which
// all wait for that ask meanwhile.
func (p *Profiles) Load(ctx context.Context) error {
	for {
		l, first := p.join()
		if first {
			err := errors.New("the load was broken off") // it is, unless load returns
			defer func() { p.leave(l, err, ctx.Err() != nil) }()
			err = p.load(ctx)
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.done:
		}
		if !l.aborted {
			return l.err
		}
	}
}

// join returns the load that is under way, or a new one, of which the caller is the first.
func (p *Profiles) join() (l *loading, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loading != nil {
		return p.loading, false
	}
	p.loading = &loading{done: make(chan struct{})}
	return p.loading, true
}

// leave ends a load. One that its caller has aborted tells nothing of the profile.
func (p *Profiles) leave(l *loading, err error, aborted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.err, l.aborted = err, aborted && err != nil
	if !l.aborted {
		p.failed, p.current, p.tried = err, err == nil, time.Now()
	}
	p.loading = nil
	close(l.done)
}

// stale reports whether it is time to load a profile that the kernel has, because its text may be another release's.
func (p *Profiles) stale() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.current && time.Since(p.tried) > retryStale
}

func (p *Profiles) lastFailure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func (p *Profiles) load(ctx context.Context) error {
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
		return fmt.Errorf("load the AppArmor profile %s, which is tried again at the next container: %w", DefaultName, err)
	}
	// Without the note the next start loads it again.
	_ = os.WriteFile(note, text, 0o600)
	return nil
}

// replace compiles a profile and loads it, in place of one of the same name.
func (p *Profiles) replace(ctx context.Context, text []byte) error {
	parser, err := p.findParser()
	if err != nil {
		return err
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

func (p *Profiles) findParser() (string, error) {
	if p.parser != "" {
		return firstOf(p.parser)
	}
	return FindParser()
}

// FindParser returns the path of the compiler, or ErrNoParser. It looks also where a service's PATH may not lead.
func FindParser() (string, error) {
	return firstOf("apparmor_parser", "/usr/sbin/apparmor_parser", "/sbin/apparmor_parser")
}

func firstOf(names ...string) (string, error) {
	for _, name := range names {
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
