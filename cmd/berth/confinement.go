package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"berth/internal/apparmor"
	"berth/internal/config"
	"berth/internal/host"
	"berth/internal/selinux"
)

// confinement is what the kernel's security modules do with containers that ask for nothing.
type confinement struct {
	profiles *apparmor.Profiles
	profile  string        // the AppArmor profile for RuntimeDefault; empty where there is none
	labels   *selinux.Node // nil where containers get no SELinux labels
	initFile string        // the monitor's binary, with a label with which containers may run it
}

func (n *node) openConfinement(ctx context.Context) error {
	n.confinement.profiles = &apparmor.Profiles{
		State: n.cfg.State, Families: host.SocketFamilies(), Run: n.groups.helpers.Run,
	}
	if n.facts.AppArmor {
		n.confinement.loadProfile(ctx, n.log)
	}
	return n.confinement.openSELinux(n.cfg, n.facts.SELinux, n.monitor, n.log)
}

// loadProfile loads the default AppArmor profile. Where that fails, containers that ask for no profile run without one.
func (c *confinement) loadProfile(ctx context.Context, log *slog.Logger) {
	if err := c.profiles.Load(ctx); err != nil {
		log.Warn("containers that ask for no AppArmor profile run without one, and those that ask for RuntimeDefault "+
			"are refused", "error", err)
		return
	}
	c.profile = apparmor.DefaultName
}

// openSELinux asks the policy for the labels of containers. Where it has none, containers run without, unless the
// configuration says that they must not. on says whether the kernel has SELinux on, with a policy.
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
	labels, err := selinux.Open(cfg.Root, cfg.State, cfg.ImagesRoot())
	if err != nil && must {
		return cfg.Refuse("selinux", `is "on", but `+err.Error())
	}
	if err != nil {
		log.Warn("containers run without SELinux labels", "error", err)
		return nil
	}
	if c.initFile, err = lendInit(monitor, cfg.State, labels); err != nil {
		log.Warn("the init of pods was not copied to where the policy lets it run, so an older copy runs, or none",
			"copy", c.initFile, "error", err)
	}
	c.labels = labels
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
