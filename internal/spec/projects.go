package spec

import (
	"math/bits"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The requests of ioctl(2) that change which project a file is of, and whether what is made in a directory is of the
// directory's. Their low 24 bits are the same on all architectures: those above say which way the data go.
const (
	ioctlFsSetXattr   = 0x1c5820
	ioctlSetFlags64   = 0x086602 // FS_IOC_SETFLAGS of a 64-bit program
	ioctlSetFlags32   = 0x046602 // and of one of 32 bits
	ioctlWrites       = 0x40000000
	ioctlWritesPowers = 0x80000000 // on the POWER and MIPS families
)

// The system calls with which the same is done, as libseccomp names them.
const (
	ioctl       = "ioctl"
	fileSetattr = "file_setattr"
)

// KeepsProject reports whether a container has the default filter, by which its files keep their project.
func KeepsProject(sc *runtimeapi.LinuxContainerSecurityContext) bool {
	want, err := SeccompChoice(sc)
	return err == nil && !sc.GetPrivileged() && want.GetProfileType() == runtimeapi.SecurityProfile_RuntimeDefault
}

// keepInProject has a filter refuse what takes files out of the project of a writable layer, by which their size is
// counted. The owner of a file may change its project. Its flags, of which one says that a directory hands its project
// down, are set by tools such as chattr too, so they are refused only where layers are counted so.
func keepInProject(filter *specs.LinuxSeccomp, arch string, counted bool) {
	refused := []uint32{ioctlFsSetXattr}
	if counted {
		refused = append(refused, ioctlSetFlags64, ioctlSetFlags32)
	}
	way := uint32(ioctlWrites)
	if slices.Contains([]string{"ppc64", "ppc64le", "mips", "mipsle", "mips64", "mips64le"}, arch) {
		way = ioctlWritesPowers
	}
	for i := range refused {
		refused[i] |= way
	}
	allowed := false
	for i, r := range filter.Syscalls {
		if r.Action != specs.ActAllow || len(r.Args) > 0 {
			continue
		}
		allowed = allowed || slices.Contains(r.Names, ioctl)
		filter.Syscalls[i].Names = slices.DeleteFunc(slices.Clone(r.Names), func(name string) bool {
			return name == ioctl || name == fileSetattr
		})
	}
	if !allowed {
		return
	}
	for _, p := range allBut(refused, 0, 0, ^uint32(0)) {
		filter.Syscalls = append(filter.Syscalls, specs.LinuxSyscall{
			Names: []string{ioctl}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{
				Index: 1, Op: specs.OpMaskedEqual, Value: uint64(p.mask), ValueTwo: uint64(p.value),
			}},
		})
	}
}

// pattern is the numbers whose bits in mask are those of value.
type pattern struct{ mask, value uint32 }

// allBut are patterns that together are all numbers of 32 bits but a few, of those whose bits in mask are those of
// value; free are the bits by which the few may differ from others. A filter compares 64 bits, and the kernel looks at
// the lower 32 of a request: so no comparison for inequality will do, and of rules of which one allows and another
// refuses the same call, runtimes make what they like. Rules that all allow, each by a mask, say it in any order.
func allBut(few []uint32, mask, value, free uint32) (patterns []pattern) {
	if len(few) == 0 {
		return []pattern{{mask, value}}
	}
	var differing uint32
	for _, n := range few {
		differing |= (n ^ few[0]) & free
	}
	for same := free &^ differing; same != 0; same &= same - 1 {
		bit := same & -same
		patterns = append(patterns, pattern{mask | bit, value | ^few[0]&bit})
	}
	if differing == 0 {
		return patterns
	}
	bit := uint32(1) << (bits.Len32(differing) - 1)
	for _, side := range []uint32{0, bit} {
		here := slices.DeleteFunc(slices.Clone(few), func(n uint32) bool { return n&bit != side })
		patterns = append(patterns, allBut(here, mask|bit, value|side, differing&^bit)...)
	}
	return patterns
}
