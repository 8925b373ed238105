package spec

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/host"
)

// The requests as the kernel's headers have them on amd64 and arm64.
const (
	fsGetXattr = 0x801c581f
	fsSetXattr = 0x401c5820
	getFlags   = 0x80086601
	setFlags   = 0x40086602
	setFlags32 = 0x40046602
)

// TestKeepInProject asks the rules about the refused requests, all that differ from them in one or two bits, others
// that programs use, and many at random, each also with high bits, at which the kernel does not look.
func TestKeepInProject(t *testing.T) {
	h := Host{DefaultSeccomp: host.DefaultSeccomp, Arch: "amd64"}
	for _, c := range []struct {
		counted bool
		refused []uint32
	}{{false, []uint32{fsSetXattr}}, {true, []uint32{fsSetXattr, setFlags, setFlags32}}} {
		f := defaultSeccomp(h, Handler{}, c.counted, nil)
		rules := 0
		ask := func(request uint32) {
			for _, high := range []uint64{0, 1 << 32, 0xdeadbeef << 32, 1 << 63} {
				if got, want := allows(f, high|uint64(request)), !slices.Contains(c.refused, request); got != want {
					t.Errorf("counted %v: request %#x with %#x above is allowed: %v", c.counted, request, high, got)
				}
			}
		}
		for _, r := range []uint32{fsSetXattr, setFlags, setFlags32, fsGetXattr, getFlags, 0, 0x5401, 0x541b, ^uint32(0)} {
			ask(r)
			for i := range 32 {
				for j := range 32 {
					ask(r ^ 1<<i ^ 1<<j)
				}
			}
		}
		for range 20_000 {
			ask(rand.Uint32())
		}
		for _, r := range f.Syscalls {
			if slices.Contains(r.Names, "file_setattr") && r.Action == specs.ActAllow {
				t.Error("file_setattr is allowed")
			}
			if slices.Contains(r.Names, "ioctl") {
				rules++
			}
		}
		if rules > 40 {
			t.Errorf("ioctl takes %d rules", rules)
		}
	}
}

// allows is whether the rules let ioctl through: each names it alone and compares its request, or they let all through.
func allows(f *specs.LinuxSeccomp, request uint64) bool {
	return slices.ContainsFunc(f.Syscalls, func(r specs.LinuxSyscall) bool {
		if !slices.Contains(r.Names, "ioctl") || r.Action != specs.ActAllow {
			return false
		}
		return len(r.Args) == 0 || len(r.Args) == 1 && r.Args[0].Index == 1 && r.Args[0].Op == specs.OpMaskedEqual &&
			request&r.Args[0].Value == r.Args[0].ValueTwo
	})
}

// TestProjectRequests looks at the numbers on the architectures that have others.
func TestProjectRequests(t *testing.T) {
	numbers := map[string]uint64{"amd64": fsSetXattr, "arm64": fsSetXattr, "s390x": fsSetXattr, "ppc64le": 0x801c5820}
	for arch, want := range numbers {
		f := defaultSeccomp(Host{DefaultSeccomp: host.DefaultSeccomp, Arch: arch}, Handler{}, false, nil)
		if allows(f, want) || !allows(f, want^0xc0000000) {
			t.Errorf("%s: %#x is allowed: %v", arch, want, allows(f, want))
		}
	}
}

// TestNoRulesForMore: a filter without ioctl is not given it.
func TestNoRulesForMore(t *testing.T) {
	names := []string{"read", "file_setattr"}
	f := &specs.LinuxSeccomp{Syscalls: []specs.LinuxSyscall{{Names: names, Action: specs.ActAllow}}}
	keepInProject(f, "amd64", true)
	if len(f.Syscalls) != 1 || !slices.Equal(f.Syscalls[0].Names, []string{"read"}) {
		t.Errorf("%+v", f.Syscalls)
	}
}
