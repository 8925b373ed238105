package spec

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/annotation"
)

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultTerm = "xterm"
)

// process fills in what the first process is, but for its capabilities.
func (b *build) process() error {
	args, err := Command(b.Container, b.Image)
	if err != nil {
		return err
	}
	env, err := b.environment()
	if err != nil {
		return err
	}
	if err := checkArguments(args, env); err != nil {
		return err
	}
	if dir := b.Container.GetWorkingDir(); dir != "" && !path.IsAbs(dir) {
		return fmt.Errorf("working directory %q is not an absolute path", dir)
	}
	dir := WorkingDir(b.Container, b.Image)
	if strings.ContainsRune(dir, 0) {
		return fmt.Errorf("working directory %q contains a NUL byte", dir)
	}
	p := b.out.Process
	p.Args, p.Env, p.Cwd, p.Terminal = args, env, dir, b.Container.GetTty()
	p.User = specs.User{UID: b.User.UID, GID: b.User.GID, AdditionalGids: b.User.AdditionalGids}
	p.NoNewPrivileges = b.security.GetNoNewPrivs()
	if p.Rlimits, err = b.rlimits(); err != nil {
		return err
	}
	p.OOMScoreAdj, err = b.oomScoreAdj()
	return err
}

// Command merges the request with the image as Kubernetes defines it: a command replaces the image's entrypoint and its
// arguments, arguments alone replace the image's arguments.
func Command(c *runtimeapi.ContainerConfig, image imagespec.ImageConfig) ([]string, error) {
	command, args := c.GetCommand(), c.GetArgs()
	if len(command) == 0 {
		command = image.Entrypoint
		if len(args) == 0 {
			args = image.Cmd
		}
	}
	if len(command) == 1 && command[0] == "" {
		command = nil // an image clears an inherited entrypoint this way
	}
	merged := slices.Concat(command, args)
	if len(merged) == 0 || merged[0] == "" {
		return nil, errors.New("no command: neither the container nor its image names one; set command or args")
	}
	return merged, nil
}

// WorkingDir is where the first process starts: the request's directory, the image's, or the root.
func WorkingDir(c *runtimeapi.ContainerConfig, image imagespec.ImageConfig) string {
	dir := c.GetWorkingDir()
	if dir == "" {
		dir = image.WorkingDir
	}
	return path.Join("/", dir)
}

// environment is the image's variables with the request's over them, and over the few that every container has.
func (b *build) environment() ([]string, error) {
	env := NewVariables("PATH="+defaultPath, "HOSTNAME="+b.Hostname)
	if b.Container.GetTty() {
		env.Set("TERM=" + defaultTerm)
	}
	for _, kv := range b.base.Process.Env {
		env.Set(kv)
	}
	for _, kv := range b.Image.Env {
		if name, _, ok := strings.Cut(kv, "="); ok && name != "" {
			env.Set(kv)
		}
	}
	for _, e := range b.Container.GetEnvs() {
		if e.GetKey() == "" || strings.ContainsAny(e.GetKey(), "=\x00") {
			return nil, fmt.Errorf("environment variable name %q: a name is not empty and has no = in it", e.GetKey())
		}
		env.Set(e.GetKey() + "=" + string(e.GetValue()))
	}
	if _, ok := env.at["HOME"]; !ok {
		env.Set("HOME=" + b.homeDir())
	}
	for _, kv := range env.list {
		if strings.ContainsRune(kv, 0) {
			return nil, fmt.Errorf("environment variable %q contains a NUL byte", kv)
		}
	}
	return env.All(), nil
}

func (b *build) homeDir() string {
	if b.User.HomeDir == "" {
		return "/"
	}
	return b.User.HomeDir
}

// Variables are an environment. A variable that is set again stays in its place.
type Variables struct {
	list []string
	at   map[string]int // by name
}

// NewVariables makes them of such as NAME=VALUE. Of two with one name the last counts.
func NewVariables(list ...string) *Variables {
	v := &Variables{at: map[string]int{}}
	for _, kv := range list {
		v.Set(kv)
	}
	return v
}

// Set sets one, NAME=VALUE.
func (v *Variables) Set(kv string) {
	name, _, _ := strings.Cut(kv, "=")
	if i, ok := v.at[name]; ok {
		v.list[i] = kv
		return
	}
	v.at[name] = len(v.list)
	v.list = append(v.list, kv)
}

// All are all of them, each NAME=VALUE.
func (v *Variables) All() []string { return v.list }

// What execve takes of arguments and environment: in all, with a stack of any size, and of one.
const (
	maxArguments = 6 << 20
	maxArgument  = 128<<10 - 1
)

// checkArguments refuses more arguments and variables than any process can have.
func checkArguments(args, env []string) error {
	total := 0
	for _, list := range [][]string{args, env} {
		for _, s := range list {
			if len(s) > maxArgument {
				return fmt.Errorf("an argument or variable has %d bytes (it begins with %q), more than the %d that the kernel "+
					"takes: make it shorter", len(s), s[:32], maxArgument)
			}
			if strings.ContainsRune(s, 0) { // a runtime may take it for the end
				return fmt.Errorf("the argument or variable %q contains a NUL byte", s)
			}
			total += len(s) + 9 // the NUL at its end, and a pointer
		}
	}
	if total > maxArguments {
		return fmt.Errorf("arguments and environment have %d bytes together, more than the %d that the kernel takes: leave "+
			"some out", total, maxArguments)
	}
	return nil
}

func hasenv(env []string, name string) bool {
	return slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
}

// CheckOOMScore refuses an adjustment that the kernel does not have.
func CheckOOMScore(want int64) error {
	if want < -1000 || want > 1000 {
		return fmt.Errorf("oom_score_adj %d is outside -1000 to 1000", want)
	}
	return nil
}

// oomScoreAdj is always set: a container would otherwise inherit the score of the monitor, which the kernel spares.
func (b *build) oomScoreAdj() (*int, error) {
	want := b.Container.GetLinux().GetResources().GetOomScoreAdj()
	if err := CheckOOMScore(want); err != nil {
		return nil, err
	}
	got := clampScore(int(want), b.Host)
	if got != int(want) {
		b.warn("oom_score_adj %d raised to %d: the daemon lacks CAP_SYS_RESOURCE", want, got)
	}
	return &got, nil
}

func clampScore(want int, host Host) int {
	if host.HasResource {
		return want
	}
	return max(want, host.OOMScoreAdj)
}

// rlimits lowers what was asked for to the daemon's own hard limits where it may not exceed them. The handler's own
// limits replace those of its base, and those of the request replace both: a runtime refuses two limits of a type.
func (b *build) rlimits() ([]specs.POSIXRlimit, error) {
	own, err := annotation.Ulimits(b.Container.GetAnnotations())
	if err != nil {
		return nil, err
	}
	var asked, out []specs.POSIXRlimit
	for _, l := range slices.Concat(b.base.Process.Rlimits, b.Handler.Rlimits, b.Rlimits, own) {
		same := func(other specs.POSIXRlimit) bool { return other.Type == l.Type }
		if i := slices.IndexFunc(asked, same); i >= 0 {
			asked[i] = l
			continue
		}
		asked = append(asked, l)
	}
	for _, want := range asked {
		if want.Soft > want.Hard {
			return nil, fmt.Errorf("%s: the soft limit %d is above the hard limit %d", want.Type, want.Soft, want.Hard)
		}
		got := want
		if top, ok := hardLimit(b.Host, want.Type); ok && !b.Host.HasResource && want.Hard > top {
			got.Hard, got.Soft = top, min(want.Soft, top)
			b.warn("%s %d lowered to %d: the daemon lacks CAP_SYS_RESOURCE", want.Type, want.Hard, top)
		}
		out = append(out, got)
	}
	return out, nil
}

func hardLimit(host Host, kind string) (uint64, bool) {
	for _, l := range host.Rlimits {
		if l.Type == kind {
			return l.Hard, true
		}
	}
	return 0, false
}

// Process is what `exec` runs in the container of base: another command as the same user, in the same place, with the
// same powers. base is not changed and shares nothing with the result that a caller would change. A command that no
// process can have is an error.
func Process(base *specs.Spec, cmd []string, tty bool) (*specs.Process, error) {
	p := *base.Process
	p.Args = slices.Clone(cmd)
	p.Env = slices.Clone(p.Env)
	p.Terminal, p.ConsoleSize = tty, nil
	if tty && !hasenv(p.Env, "TERM") {
		p.Env = append(p.Env, "TERM="+defaultTerm)
	}
	return &p, checkArguments(p.Args, p.Env)
}

// ProcessChange is how a command differs from the process of its container. What is empty does not.
type ProcessChange struct {
	User *User
	Dir  string
	Env  []string // NAME=VALUE
}

// Apply changes a process that Process has made. Another user has none of the capabilities that the container's was
// given to keep, only what the kernel gives to its number.
func (c ProcessChange) Apply(p *specs.Process) error {
	env := NewVariables(p.Env...)
	if u := c.User; u != nil {
		p.User = specs.User{UID: u.UID, GID: u.GID, AdditionalGids: u.AdditionalGids}
		if had := p.Capabilities; had != nil {
			kept := *had
			kept.Ambient, kept.Inheritable = nil, nil
			p.Capabilities = &kept
		}
		if u.HomeDir != "" {
			env.Set("HOME=" + u.HomeDir)
		}
	}
	if c.Dir != "" {
		if !path.IsAbs(c.Dir) {
			return fmt.Errorf("working directory %q is not an absolute path", c.Dir)
		}
		p.Cwd = path.Clean(c.Dir)
	}
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsRune(kv, 0) {
			return fmt.Errorf("environment variable %q: want NAME=VALUE", kv)
		}
		env.Set(kv)
	}
	p.Env = env.All()
	return checkArguments(p.Args, p.Env)
}
