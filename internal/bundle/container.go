package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/fault"
	"berth/internal/network"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
)

// Container makes and unmakes what one container has on the host, by its record and its pod's. Each method may be
// repeated, and what unmakes succeeds when nothing is there.
type Container struct {
	pod Pod
	b   *Builder
	at  *sandbox.Layout // of b
	r   *sandbox.Record
	ctr *sandbox.Container
}

// Container is a container of a record.
func (b *Builder) Container(r *sandbox.Record, c *sandbox.Container) Container {
	return Container{b.Pod(r), b, &b.Layout, r, c}
}

// MakeDirs makes the directory of the writable layer, with its limit, and the run directory.
func (c Container) MakeDirs() error {
	dir := c.at.Writable(c.r.ID, c.ctr.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if c.b.Projects {
		if err := rootfs.AssignProject(dir); err != nil {
			c.b.Log.Warn("what a container writes is counted by walking over it", "pod", c.r.ID, "container", c.ctr.ID,
				"error", err)
		}
	}
	err := fault.At("container.storage.before")
	if err == nil {
		err = c.LimitStorage()
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.at.Rootfs(c.r.ID, c.ctr.ID), 0o711); err != nil {
		return err
	}
	// What is made there gets the label too: the FIFOs that are the process's standard streams.
	return c.b.Labels.label(c.r, c.at.RunContainer(c.r.ID, c.ctr.ID))
}

// RemoveWritable takes away what the container has written, and its limit first: nobody finds that by a directory that
// is gone. A limit that stays keeps its number from being used again, and nothing else. What its log is owed goes too.
func (c Container) RemoveWritable() error {
	dir := c.at.Writable(c.r.ID, c.ctr.ID)
	if c.b.Projects {
		if err := rootfs.ClearQuota(dir); err != nil {
			c.b.Log.Warn("the limit of a container that is removed stays with its project's number", "pod", c.r.ID,
				"container", c.ctr.ID, "error", err)
		}
	}
	return errors.Join(rootfs.Remove(sandbox.RunOwed(c.at, c.r.ID, c.ctr.ID)), rootfs.Remove(dir))
}

// MountRoot mounts the container's root.
func (c Container) MountRoot(img Images) error {
	return rootfs.Prepare(c.at.Writable(c.r.ID, c.ctr.ID), c.at.Rootfs(c.r.ID, c.ctr.ID),
		rootfs.Options{Lower: img.Dirs, IDs: c.pod.ids().IDMap, Label: c.b.Labels.of(c.r, c.ctr).Mount})
}

// UnmountRoot unmounts the container's root and mounts, and removes its run directory, which holds nothing else by now
// but, perhaps, its exit file. keepExit says that the exit file is all that the next daemon would know of the exit.
func (c Container) UnmountRoot(keepExit bool) error {
	if err := rootfs.Unmount(c.at.Rootfs(c.r.ID, c.ctr.ID)); err != nil {
		return err
	}
	if err := c.Unstage(); err != nil {
		return err
	}
	dir := c.at.RunContainer(c.r.ID, c.ctr.ID)
	if !keepExit {
		return rootfs.Remove(dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); path != c.at.RunExit(c.r.ID, c.ctr.ID) {
			if err := rootfs.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// WritableSys has a privileged container that is made before done is called get a writable /sys, whatever other
// containers of the pod have. It is nothing to others, and in the host's network namespace.
func (c Container) WritableSys() (done func(), err error) {
	netns := c.pod.Namespaces().Net
	if netns == "" || !c.ctr.Config.Get().GetLinux().GetSecurityContext().GetPrivileged() {
		return func() {}, nil
	}
	held, err := network.WritableSysfs(netns)
	if err != nil {
		return nil, fmt.Errorf("a writable /sys, for a privileged container: %w", err)
	}
	return func() { held.Close() }, nil
}

// Unstage takes away the mounts that were made for the container alone. Once it is created it has its own: those here
// would keep the node from removing what it has unmounted of a volume.
func (c Container) Unstage() error {
	return rootfs.Unstage(sandbox.StagedMounts(c.at, c.r.ID, c.ctr.ID))
}
