package bundle

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/limit"
	"berth/internal/rootfs"
	"berth/internal/sandbox"
)

// etcRoom is how many bytes the containers of a pod can add to their /etc/hostname, /etc/hosts and /etc/resolv.conf.
const etcRoom = 1 << 20

// Dirs are the pod's run directory and the directory of its logs, which belongs to its reader and is never removed.
func Dirs(p Pod) Part {
	return Part{
		Make:   func(context.Context) error { return makeDirs(p) },
		Remove: func(context.Context) error { return rootfs.Remove(p.at.Run(p.r.ID)) },
	}
}

func makeDirs(p Pod) error {
	run, ids := p.at.Run(p.r.ID), p.ids()
	if err := os.MkdirAll(filepath.Join(run, "c"), 0o700); err != nil {
		return err
	}
	if err := ids.letPass(run, filepath.Join(run, "c")); err != nil {
		return err
	}
	return makeLogDirectory(p.r.Config.Get().LogDirectory)
}

// Etc are the files that the pod's containers see below /etc. They are writable there, so they lie in a tmpfs of the
// pod whose size is bounded: what a container writes to them cannot fill the node's state directory, and counts to the
// container's memory.
func Etc(p Pod) Part {
	return Part{
		Make:   func(context.Context) error { return makeEtc(p) },
		Remove: func(context.Context) error { return rootfs.Unmount(sandbox.EtcMount(p.at, p.r.ID)) },
	}
}

func makeEtc(p Pod) error {
	files, err := etcFiles(p.r)
	if err != nil {
		return err
	}
	size := int64(etcRoom)
	for _, data := range files {
		size += int64(len(data)) + pageSize
	}
	etc, ids := sandbox.EtcMount(p.at, p.r.ID), p.ids()
	// The directory cannot be listed by users other than the pod's root; they read the files through bind mounts.
	if err := rootfs.MakeTmpfs(etc, rootfs.Tmpfs{Size: size, Mode: 0o711, UID: ids.UID, GID: ids.GID}); err != nil {
		return err
	}
	for name, data := range files {
		path := filepath.Join(etc, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
		if err := ids.give(path); err != nil {
			return err
		}
		if err := p.b.Labels.label(p.r, path); err != nil {
			return err
		}
	}
	return nil
}

// pageSize is what tmpfs rounds a file's size up to.
const pageSize = 4096

// etcFiles are the contents of the pod's files below /etc, by name.
func etcFiles(r *sandbox.Record) (map[string][]byte, error) {
	name, err := r.Hostname()
	if err != nil {
		return nil, fmt.Errorf("look up the node's name: %w", err)
	}
	resolv, err := resolvConf(r.Config.Get().DnsConfig)
	if err != nil {
		return nil, err
	}
	hosts, err := ofNode("/etc/hosts")
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"hostname": []byte(name + "\n"), "resolv.conf": resolv, "hosts": hosts}, nil
}

// resolvConf is the pod's /etc/resolv.conf: what DNSConfig says, the node's own where it says nothing (see
// resolv.conf(5)).
func resolvConf(d *runtimeapi.DNSConfig) ([]byte, error) {
	if len(d.GetServers())+len(d.GetSearches())+len(d.GetOptions()) == 0 {
		return ofNode("/etc/resolv.conf")
	}
	var b bytes.Buffer
	if len(d.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(d.Searches, " "))
	}
	for _, s := range d.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(d.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(d.Options, " "))
	}
	return b.Bytes(), nil
}

// ofNode reads a file of the node that the pod gets a copy of. A node without it has an empty one.
func ofNode(path string) ([]byte, error) {
	data, err := limit.ReadFile(path, limit.NodeFile)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("copy the node's %s into the pod: %w", path, err)
	}
	return data, nil
}

// makeLogDirectory makes the directory that the kubelet named for the pod's logs.
func makeLogDirectory(dir string) error {
	if dir == "" {
		return nil
	}
	return os.MkdirAll(dir, 0o755)
}
