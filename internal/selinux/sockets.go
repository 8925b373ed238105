package selinux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// exotic are the classes of sockets that no ordinary container needs, as policies call them: those of the families
// that the default seccomp filter and AppArmor profile close, as far as they have a class.
var exotic = []string{
	"alg", "vsock", "tipc", "rds", "smc", "kcm", "rxrpc", "qipcrtr", "nfc", "caif", "phonet", "ieee802154", "mctp",
	"isdn", "llc", "iucv", "irda", "ax25", "ipx", "appletalk", "netrom", "rose", "x25", "decnet", "atmpvc", "atmsvc",
}

// policyDir is where the kernel answers questions about its policy.
const policyDir = "/sys/fs/selinux"

// OpenSockets asks the policy for the exotic classes of sockets that containers may make, such as alg_socket. A policy
// that does not tell these classes apart from other sockets is asked for that class alone.
func (n *Node) OpenSockets() (open []string, err error) {
	return openSockets(policyDir, n.process, allowed)
}

func openSockets(dir, label string, ask func(dir, label, class string) (bool, error)) (open []string, err error) {
	classes := []string{"socket"}
	if says(dir, "policy_capabilities/extended_socket_class", "1") {
		classes = nil
		for _, family := range exotic {
			classes = append(classes, family+"_socket")
		}
	}
	allowUnknown := says(dir, "deny_unknown", "0") // of a class that is younger than the policy
	for _, class := range classes {
		yes, err := ask(dir, label, class)
		if errors.Is(err, fs.ErrNotExist) {
			yes, err = allowUnknown, nil
		}
		if err != nil {
			return nil, err
		}
		if yes {
			open = append(open, class)
		}
	}
	return open, nil
}

// allowed asks the kernel whether a process with the label may create an object of the class, with the label of the
// process.
func allowed(dir, label, class string) (yes bool, err error) {
	index, err := number(filepath.Join(dir, "class", class, "index"))
	if err != nil {
		return false, err
	}
	create, err := number(filepath.Join(dir, "class", class, "perms/create"))
	if err != nil {
		return false, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "access"), os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%s %s %d", label, label, index); err != nil {
		return false, fmt.Errorf("ask the policy about %s: %w", class, err)
	}
	answer := make([]byte, 256)
	k, err := f.Read(answer)
	if err != nil {
		return false, fmt.Errorf("ask the policy about %s: %w", class, err)
	}
	var vector, flags, other uint32
	_, err = fmt.Sscanf(string(answer[:k]), "%x %x %x %x %d %x", &vector, &other, &other, &other, &other, &flags)
	if err != nil {
		return false, fmt.Errorf("read the policy's answer about %s: %w", class, err)
	}
	const permissive = 1 // the domain is one that is watched only
	return vector>>(create-1)&1 == 1 || flags&permissive != 0, nil
}

// says is whether the kernel's file about its policy has this value.
func says(dir, name, value string) bool {
	text, err := os.ReadFile(filepath.Join(dir, name))
	return err == nil && strings.TrimSpace(string(text)) == value
}

func number(path string) (uint32, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%s: %q is no number from 1 on", path, text)
	}
	return uint32(n), nil
}
