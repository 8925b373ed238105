package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ipcSysctls are the ones of an IPC namespace that no prefix tells.
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
	"kernel.shm_rmid_forced",
}

// CheckSysctls allows what belongs to a namespace of the pod alone. The daemon writes them when it makes the
// namespaces, so they are in no spec: every container of the pod joins what is already set.
func CheckSysctls(sysctls map[string]string, net, ipc, uts bool) error {
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		if err := checkSysctl(name, net, ipc, uts); err != nil {
			return fmt.Errorf("sysctl %s: %w", name, err)
		}
		if strings.ContainsAny(sysctls[name], "\x00\n") {
			return fmt.Errorf("sysctl %s: its value has a line break or a NUL byte in it", name)
		}
	}
	return nil
}

func checkSysctl(name string, net, ipc, uts bool) error {
	p, err := SysctlPath(name)
	if err != nil {
		return err
	}
	top, rest, _ := strings.Cut(p, "/")
	dotted := strings.ReplaceAll(p, "/", ".")
	switch {
	case dotted == "kernel.hostname":
		return fmt.Errorf("the pod's hostname is set by the pod's hostname field")
	case top == "net":
		return allowed(net, "network")
	case slices.Contains(ipcSysctls, dotted) || top == "fs" && strings.HasPrefix(rest, "mqueue/"):
		return allowed(ipc, "IPC")
	case dotted == "kernel.domainname":
		return allowed(uts, "UTS")
	}
	return fmt.Errorf("it is the node's, not a pod's: only net.*, fs.mqueue.*, kernel.shm*, kernel.msg*, kernel.sem and " +
		"kernel.domainname belong to namespaces")
}

func allowed(private bool, kind string) error {
	if private {
		return nil
	}
	return fmt.Errorf("the pod shares the node's %s namespace, so it would change the node", kind)
}

// SysctlPath is the path of a sysctl below /proc/sys. As for sysctl(8), the first separator decides: in
// net.ipv4.conf.eth0/1.mtu a slash stands for a dot in a name, in net/ipv4/conf/eth0.1/mtu a dot is just a dot.
func SysctlPath(name string) (string, error) {
	p := name
	if dot, slash := strings.IndexByte(name, '.'), strings.IndexByte(name, '/'); dot >= 0 && (slash < 0 || dot < slash) {
		p = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	parts := strings.Split(p, "/")
	if len(parts) < 2 {
		return "", fmt.Errorf("a name has at least two parts, such as net.core.somaxconn")
	}
	for _, part := range parts {
		if part == "" || part == "." || part == ".." || strings.ContainsFunc(part, notSysctlRune) {
			return "", fmt.Errorf("part %q of the name is not one a sysctl can have", part)
		}
	}
	return p, nil
}

func notSysctlRune(r rune) bool { return r <= ' ' || r > '~' }
