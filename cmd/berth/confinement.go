package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"berth/internal/admin"
	"berth/internal/apparmor"
	"berth/internal/bundle"
	"berth/internal/config"
	"berth/internal/host"
	"berth/internal/selinux"
)

// confinement is what the kernel's security modules do with containers that ask for nothing.
type confinement struct {
	profiles *apparmor.Profiles // nil where the kernel has AppArmor off
	labels   *labels            // nil where the kernel has SELinux off, or the configuration
}

func (n *node) openConfinement(ctx context.Context) error {
	if n.facts.AppArmor {
		n.confinement.profiles = &apparmor.Profiles{
			State: n.cfg.State, Families: host.SocketFamilies(), Run: n.groups.helpers.Run,
			Off:     n.cfg.AppArmor == config.AppArmorOff,
			NoAdmin: !slices.Contains(n.facts.BoundingCaps, "CAP_MAC_ADMIN"),
		}
		n.confinement.loadProfile(ctx, n.log)
	}
	return n.confinement.openSELinux(n.cfg, n.facts.SELinux, n.monitor, n.log)
}

// loadProfile loads the default AppArmor profile. Where that fails, each container that is to have it tries again.
func (c *confinement) loadProfile(ctx context.Context, log *slog.Logger) {
	if c.profiles.Default() != "" {
		_ = c.profiles.Load(ctx) // the status has why it failed
	}
	if s := c.profiles.Status(); s.Problem != nil {
		log.Warn("the default AppArmor profile is not as it should be", "problem", s.Problem)
	}
}

// appArmor is what AppArmor does with containers that ask for nothing.
func (c *confinement) appArmor() *admin.Module {
	if c.profiles == nil || c.profiles.Off {
		return &admin.Module{}
	}
	s := c.profiles.Status()
	return moduleOf(s.Profile, s.Problem)
}

// seLinux is the same of SELinux.
func (c *confinement) seLinux() *admin.Module {
	if c.labels == nil {
		return &admin.Module{}
	}
	node, err := c.labels.known()
	if node == nil {
		return moduleOf("", fmt.Errorf("containers run without SELinux labels: %w", err))
	}
	process, _ := node.Usual()
	return moduleOf(process, nil)
}

func moduleOf(gives string, problem error) *admin.Module {
	m := &admin.Module{On: true, Gives: gives}
	if problem != nil {
		m.Problem = problem.Error()
	}
	return m
}

// problems are what of it a person should look at.
func (c *confinement) problems() (all []admin.Problem) {
	for _, m := range []*admin.Module{c.appArmor(), c.seLinux()} {
		if m.Problem != "" {
			all = append(all, admin.Problem{Message: m.Problem})
		}
	}
	return all
}

// labels are the SELinux labels of containers, from when on the policy has some: its package may come after the daemon.
type labels struct {
	open func() (*selinux.Node, error)
	lend func(*selinux.Node) string // makes a program for the init of pods

	asking sync.Mutex // held while the policy and the disk are asked, before mu

	mu       sync.Mutex    // guards what follows, and is held for no disk
	node     *selinux.Node // nil until it was opened
	initFile string        // the monitor's binary, with a label with which containers may run it; empty is none
	lacks    error         // what the policy was found to lack when it was last asked
}

// get asks the policy again where it had no labels. What it has once stays.
func (l *labels) get() (*selinux.Node, error) {
	if node, _ := l.known(); node != nil {
		return node, nil
	}
	l.asking.Lock()
	defer l.asking.Unlock()
	if node, _ := l.known(); node != nil { // who asked before has found it
		return node, nil
	}
	node, err := l.open()
	file := ""
	if err == nil {
		file = l.lend(node)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.lacks = err
		return nil, err
	}
	l.node, l.initFile, l.lacks = node, file, nil
	return node, nil
}

// known is what was found when the policy was last asked. It asks nobody, so that a status waits for no disk.
func (l *labels) known() (*selinux.Node, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.node, l.lacks
}

// forNew is what gives labels to pods that are made now; nil while they get none.
func (l *labels) forNew() bundle.SELinux {
	node, err := l.get()
	if err != nil { // the status of the daemon has it
		return nil
	}
	return node
}

// program is the init of pods that are made now; empty is the monitor's binary itself.
func (l *labels) program() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.initFile
}

// openSELinux asks the policy for the labels of containers. Where it has none, containers run without until it has,
// unless the configuration says that they must not. on says whether the kernel has SELinux on, with a policy.
func (c *confinement) openSELinux(cfg *config.Config, on bool, monitor string, log *slog.Logger) error {
	must := cfg.SELinux == config.SELinuxOn
	switch {
	case cfg.SELinux == config.SELinuxOff:
		return nil
	case !on && must:
		return cfg.Refuse("selinux", `is "on", but this kernel has SELinux not on, or no policy: boot with it, or `+
			`leave the key out`)
	case !on:
		return nil
	}
	c.labels = &labels{
		open: func() (*selinux.Node, error) { return selinux.Open(cfg.Root, cfg.State, cfg.ImagesRoot()) },
		lend: func(node *selinux.Node) string {
			path, err := lendInit(monitor, cfg.State, node)
			if err != nil {
				log.Warn("the init of pods was not copied to where the policy lets it run, so an older copy runs, or none",
					"copy", path, "error", err)
			}
			return path
		},
	}
	_, err := c.labels.get()
	if err != nil && must {
		return cfg.Refuse("selinux", `is "on", but `+err.Error())
	}
	if err != nil {
		log.Warn("containers run without SELinux labels, until the policy has some", "error", err)
	}
	return nil
}

// lendInit copies the monitor's binary into dir, labelled as a file of every container: the init of a pod may not run
// a program with the label of the node's own. With an error it returns the copy of an earlier start, or "" where there
// is none.
func lendInit(monitor, dir string, labels *selinux.Node) (string, error) {
	_, file := labels.Usual()
	return lend(monitor, filepath.Join(dir, "pod-init"), func(path string) error { return labels.Label(path, file) })
}

func lend(monitor, path string, label func(path string) error) (string, error) {
	err := replaceCopy(monitor, path, label)
	if err == nil {
		return path, nil
	}
	if _, none := os.Stat(path); none != nil {
		path = ""
	}
	return path, err
}

// replaceCopy copies a program to path at once or not at all. Those that run the old one keep it.
func replaceCopy(monitor, path string, label func(path string) error) (err error) {
	from, err := os.Open(monitor)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path+".next", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(path+".next"))
		}
	}()
	_, err = io.Copy(to, from)
	err = errors.Join(err, to.Chmod(0o755), to.Close(), label(path+".next"))
	if err != nil {
		return err
	}
	return os.Rename(path+".next", path)
}
