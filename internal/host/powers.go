package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// capabilities are the names of the kernel's, by number.
var capabilities = strings.Fields(`
	CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
	NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN
	SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
	MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

// powers probes what the daemon itself may do.
func powers(f *Facts) error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	bounding, err := capSet(string(status), "CapBnd")
	if err != nil {
		return err
	}
	effective, err := capSet(string(status), "CapEff")
	if err != nil {
		return err
	}
	for i, name := range capabilities {
		if bounding&(1<<i) != 0 {
			f.BoundingCaps = append(f.BoundingCaps, "CAP_"+name)
		}
	}
	f.HasResource = effective&(1<<unix.CAP_SYS_RESOURCE) != 0
	score, err := line("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	f.OOMScoreAdj, err = strconv.Atoi(score)
	return err
}

// capSet reads one set of capabilities from the text of a process's status.
func capSet(status, name string) (uint64, error) {
	for l := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(l, name+":"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no %s", name)
}

// rlimits are the names of the kernel's limits by number, the same on every architecture that Berth runs on.
var rlimits = strings.Fields(
	`CPU FSIZE DATA STACK CORE RSS NPROC NOFILE MEMLOCK AS LOCKS SIGPENDING MSGQUEUE NICE RTPRIO RTTIME`)

func limits(f *Facts) error {
	for i, name := range rlimits {
		var l unix.Rlimit
		if err := unix.Prlimit(0, i, nil, &l); err != nil {
			return fmt.Errorf("limit %s: %w", name, err)
		}
		f.Rlimits = append(f.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_" + name, Hard: l.Max, Soft: l.Cur})
	}
	return nil
}
