package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// profileFile is a profile as it is found on nodes: the OCI form, the one Docker and containerd extended with
// conditions, and the names that Podman adds for readers.
type profileFile struct {
	specs.LinuxSeccomp
	ArchMap      []archRule `json:"archMap"`
	Syscalls     []ruleFile `json:"syscalls"`
	DefaultErrno string     `json:"defaultErrno"`
	Comment      string     `json:"comment"`
	Schema       string     `json:"$schema"`
}

type ruleFile struct {
	specs.LinuxSyscall
	Name     string     `json:"name"` // profiles of old have it in place of names
	Comment  string     `json:"comment"`
	Errno    string     `json:"errno"`
	Includes *condition `json:"includes"`
	Excludes *condition `json:"excludes"`
}

// ParseSeccomp reads a profile from a node. It is strict: a profile with a key, action or operator that is not known
// would not mean what its author thinks, and a wrong filter is found out too late.
func ParseSeccomp(profile []byte) (*SeccompProfile, error) {
	var file profileFile
	dec := json.NewDecoder(bytes.NewReader(profile))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("seccomp profile: there is more after its closing brace")
	}
	if err := file.check(); err != nil {
		return nil, fmt.Errorf("seccomp profile: %w", err)
	}
	out := &SeccompProfile{filter: file.LinuxSeccomp, arches: file.ArchMap}
	for _, r := range file.Syscalls {
		call := r.LinuxSyscall
		if r.Name != "" {
			call.Names = []string{r.Name}
		}
		out.rules = append(out.rules, rule{call: call, includes: r.Includes, excludes: r.Excludes})
	}
	return out, nil
}

func (f *profileFile) check() error {
	if len(f.Architectures) > 0 && len(f.ArchMap) > 0 {
		return errors.New("architectures and archMap are both given")
	}
	if f.DefaultErrno != "" && f.DefaultErrnoRet == nil {
		return fmt.Errorf("defaultErrno %s is given without its number in defaultErrnoRet", f.DefaultErrno)
	}
	if err := checkAction("defaultAction", f.DefaultAction, f.DefaultErrnoRet); err != nil {
		return err
	}
	for _, a := range f.architectures() {
		if !strings.HasPrefix(string(a), "SCMP_ARCH_") {
			return fmt.Errorf("architecture %q is not known", a)
		}
	}
	for _, flag := range f.Flags {
		if !slices.Contains(seccompFlags, flag) {
			return fmt.Errorf("flag %q is not known", flag)
		}
	}
	for i := range f.Syscalls {
		if err := f.Syscalls[i].check(); err != nil {
			return fmt.Errorf("rule %d: %w", i, err)
		}
		if f.Syscalls[i].Action == specs.ActNotify && f.ListenerPath == "" {
			return fmt.Errorf("rule %d: action %s needs listenerPath", i, specs.ActNotify)
		}
	}
	return nil
}

func (f *profileFile) architectures() []specs.Arch {
	all := slices.Clone(f.Architectures)
	for _, m := range f.ArchMap {
		all = append(append(all, m.Arch), m.SubArches...)
	}
	return all
}

func (r *ruleFile) check() error {
	switch {
	case r.Name != "" && len(r.Names) > 0:
		return errors.New("name and names are both given")
	case r.Name == "" && len(r.Names) == 0:
		return errors.New("it names no system call")
	case slices.Contains(r.Names, ""):
		return errors.New("one of its system calls has no name")
	case r.Errno != "" && r.ErrnoRet == nil:
		return fmt.Errorf("errno %s is given without its number in errnoRet", r.Errno)
	}
	for _, a := range r.Args {
		if a.Index > 5 || !slices.Contains(seccompOps, a.Op) {
			return fmt.Errorf("argument %d %s: arguments are 0 to 5 and compared by SCMP_CMP_…", a.Index, a.Op)
		}
	}
	return checkAction("action", r.Action, r.ErrnoRet)
}

func checkAction(field string, a specs.LinuxSeccompAction, errno *uint) error {
	if !slices.Contains(seccompActions, a) {
		return fmt.Errorf("%s %q is not known", field, a)
	}
	if errno != nil && a != specs.ActErrno && a != specs.ActTrace {
		return fmt.Errorf("%s %s has an errno, which only %s and %s return", field, a, specs.ActErrno, specs.ActTrace)
	}
	return nil
}

var (
	seccompActions = []specs.LinuxSeccompAction{
		specs.ActKill, specs.ActKillProcess, specs.ActKillThread, specs.ActTrap, specs.ActErrno, specs.ActTrace,
		specs.ActAllow, specs.ActLog, specs.ActNotify,
	}
	seccompOps = []specs.LinuxSeccompOperator{
		specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo, specs.OpGreaterEqual, specs.OpGreaterThan,
		specs.OpMaskedEqual,
	}
	seccompFlags = []specs.LinuxSeccompFlag{
		"SECCOMP_FILTER_FLAG_TSYNC", specs.LinuxSeccompFlagLog, specs.LinuxSeccompFlagSpecAllow,
		specs.LinuxSeccompFlagWaitKillableRecv,
	}
)
