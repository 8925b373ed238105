package unpack

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// archCalls are calls that only this architecture has by that name.
var archCalls = []uint32{unix.SYS_FSTATAT}
