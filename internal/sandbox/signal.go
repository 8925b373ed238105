package sandbox

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// signals are the names of CRI's signals by their numbers, which are stable, while the names of the enumeration have
// changed between releases of CRI. What follows the last one is SIGRTMIN to SIGRTMIN+15 and SIGRTMAX-14 to SIGRTMAX.
var signals = [...]string{1: "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT",
	"KILL", "PIPE", "POLL",
	"PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1", "USR2",
	"VTALRM", "WINCH",
	"XCPU", "XFSZ"}

// The real-time signals, as a C library counts them.
const (
	rtMin, rtMax = 34, 64
	firstRT      = len(signals) // CRI's number of SIGRTMIN
	lastRT       = firstRT + 30 // and of SIGRTMAX
)

// aliases are names that the kernel's table does not have.
var aliases = map[string]string{"CLD": "CHLD", "IOT": "ABRT", "POLL": "IO"}

// RequestedSignal is the number of the signal that a request names; zero when it names none.
func RequestedSignal(s runtimeapi.Signal) (int, error) {
	switch n := int(s); {
	case n == 0:
		return 0, nil
	case n > 0 && n < firstRT:
		return StopSignal(signals[n])
	case n >= firstRT && n <= lastRT:
		return rtMin + n - firstRT, nil
	}
	return 0, fmt.Errorf("stop signal %d is not one that CRI defines", s)
}

// CRISignal is the number that CRI has for a signal.
func CRISignal(sig int) runtimeapi.Signal {
	if sig >= rtMin && sig <= rtMax {
		return runtimeapi.Signal(firstRT + sig - rtMin)
	}
	for n, name := range signals {
		if name != "" && aliases[name] == "" && int(unix.SignalNum("SIG"+name)) == sig {
			return runtimeapi.Signal(n)
		}
	}
	return 0
}

// StopSignal is the number of the signal that asks a container to end; SIGTERM when the image names none.
func StopSignal(name string) (int, error) {
	name = strings.ToUpper(strings.TrimSpace(name))
	if name == "" {
		return int(unix.SIGTERM), nil
	}
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= rtMax {
		return n, nil
	}
	name = strings.TrimPrefix(name, "SIG")
	if alias := aliases[name]; alias != "" {
		name = alias
	}
	for prefix, base := range map[string]int{"RTMIN": rtMin, "RTMAX": rtMax} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			off, err := strconv.Atoi("0" + strings.TrimLeft(rest, "+-"))
			if strings.HasPrefix(rest, "-") {
				off = -off
			}
			if n := base + off; err == nil && n >= rtMin && n <= rtMax {
				return n, nil
			}
		}
	}
	if n := unix.SignalNum("SIG" + name); n > 0 {
		return int(n), nil
	}
	return 0, fmt.Errorf("stop signal %q is not a signal", name)
}
