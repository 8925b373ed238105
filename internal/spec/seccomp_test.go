package spec

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/host"
)

// TestSocketcall has a handler deny socketcall, and nothing else: by a rule that names no argument, and with an error
// that is not that of what no rule names. The rules for socket stay, and those of another handler.
func TestSocketcall(t *testing.T) {
	h := Host{DefaultSeccomp: host.DefaultSeccomp}
	usual, strict := defaultSeccomp(h, Handler{}, false, nil), defaultSeccomp(h, Handler{NoSocketcall: true}, false, nil)
	naming := func(f *specs.LinuxSeccomp, name string) (rules []specs.LinuxSyscall) {
		for _, r := range f.Syscalls {
			if slices.Contains(r.Names, name) {
				rules = append(rules, r)
			}
		}
		return rules
	}
	if got := naming(usual, socketcall); len(got) != 1 || got[0].Action != specs.ActAllow {
		t.Errorf("by default: %+v", got)
	}
	got := naming(strict, socketcall)
	if len(got) != 1 || len(got[0].Names) != 1 || got[0].Action != specs.ActErrno || len(got[0].Args) != 0 ||
		got[0].ErrnoRet == nil || *got[0].ErrnoRet != enosys {
		t.Errorf("denied: %+v", got)
	}
	for _, name := range []string{"socket", "connect", "read", "clone3"} {
		if a, b := len(naming(usual, name)), len(naming(strict, name)); a == 0 || a != b {
			t.Errorf("%s has %d rules, and %d beside a socketcall that is denied", name, a, b)
		}
	}
	for _, r := range strict.Syscalls {
		if len(r.Names) == 0 {
			t.Error("a rule names no system call")
		}
	}
}
