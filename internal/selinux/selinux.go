// Package selinux gives files their SELinux labels, and says which labels the policy of this node has for containers.
//
// It is for a node whose kernel has SELinux on, and nobody else calls it: nothing here looks at anything before it is
// asked.
package selinux

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"
)

// Node is the SELinux of this node. Its methods may be called concurrently.
type Node struct {
	process, file string
	keep          []string
	check         func(label string) error
}

// The labels of containers where a policy does not say how it calls them (/etc/selinux/*/contexts/lxc_contexts).
const (
	usualProcess = "system_u:system_r:container_t:s0"
	usualFile    = "system_u:object_r:container_file_t:s0"
)

// Open asks the loaded policy for its labels of containers. An error says that it has none. Besides the directories of
// the system, the directories keep, and those above them, are never relabelled.
func Open(keep ...string) (*Node, error) {
	// The library draws categories of its own here. Which ones a pod gets is decided by the records of all pods.
	process, file, err := label.InitLabels(nil)
	if err != nil {
		return nil, fmt.Errorf("read the policy's labels of containers: %w", err)
	}
	selinux.ReleaseLabel(process)
	return open(process, file, keep, selinux.SecurityCheckContext)
}

func open(process, file string, keep []string, check func(string) error) (*Node, error) {
	if process == "" || file == "" {
		process, file = usualProcess, usualFile
	}
	n := &Node{process: withoutCategories(process), file: withoutCategories(file), keep: keep, check: check}
	for _, l := range []string{n.process, n.file} {
		if err := check(l); err != nil {
			return nil, fmt.Errorf("the policy that is loaded does not know containers: it has no %s: install one that does "+
				"(Fedora and its kin: "+
				"package container-selinux; Debian: the module container of selinux-policy-default): %w", l, err)
		}
	}
	return n, nil
}

// withoutCategories leaves of user:role:type:s0:c1,c2 what comes before the categories.
func withoutCategories(l string) string {
	parts := strings.SplitN(l, ":", 5)
	return strings.Join(parts[:min(len(parts), 4)], ":")
}

// Mode says what the kernel does with what the policy does not allow: enforcing, or permissive, which is only a line in
// its log.
func Mode() string {
	if selinux.EnforceMode() == selinux.Enforcing {
		return "enforcing"
	}
	return "permissive"
}

// Usual returns the labels of processes and of files that containers have unless they ask for others, without
// categories.
func (n *Node) Usual() (process, file string) { return n.process, n.file }

// Check refuses a label that the policy does not allow.
func (n *Node) Check(l string) error {
	err := n.check(l)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("SELinux label %s: the policy of this node does not allow it", l)
	}
	if err != nil {
		return fmt.Errorf("check SELinux label %s: %w", l, err)
	}
	return nil
}

// Label labels a file or directory alone, and not what a link there leads to. On a file system without labels nothing
// is done.
func (n *Node) Label(path, l string) error {
	err := unix.Lsetxattr(path, attribute, []byte(l), 0)
	if err == nil || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return fmt.Errorf("label it %s: %w", l, &os.PathError{Op: "lsetxattr", Path: path, Err: err})
}

// attribute is the extended attribute that holds the label of a file.
const attribute = "security.selinux"
