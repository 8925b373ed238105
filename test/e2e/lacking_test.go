package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// TestNoDescriptors has a daemon that can open no file: it says what to raise, and all is well once that was done.
func TestNoDescriptors(t *testing.T) {
	r := ownNode(t, node.Options{Runtime: runtimes()[0]})
	r.pull("busybox:latest")
	var was unix.Rlimit
	r.ok(unix.Prlimit(r.n.Pid(), unix.RLIMIT_NOFILE, nil, &was))
	r.ok(unix.Prlimit(r.n.Pid(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}, nil))
	_, err := r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod("none"), "")
	r.ok(unix.Prlimit(r.n.Pid(), unix.RLIMIT_NOFILE, &was, nil))
	r.wantCode(err, codes.ResourceExhausted, "none", "too many open files", "LimitNOFILE")
	r.eventually("the pod is unmade", func() bool {
		pods, err := r.n.Runtime.ListPodSandbox(ctx(), nil)
		return err == nil && len(pods) == 0
	})
	r.wantText("a pod after it", r.pod().output(busybox("after", "echo fine")), "fine")
}

// TestNoRoomForTheLog starts a container whose log is on a full file system of its own, which its monitor finds.
func TestNoRoomForTheLog(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := ownNode(t, node.Options{Runtime: runtime})
			r.pull("busybox:latest")
			logs := t.TempDir()
			r.ok(r.n.Space.Do(func() error {
				return errors.Join(unix.Mount("tmpfs", logs, "tmpfs", 0, "size=64k,nr_inodes=2"),
					os.WriteFile(filepath.Join(logs, "other"), nil, 0o600))
			}))
			t.Cleanup(func() { _ = r.n.Space.Do(func() error { return unix.Unmount(logs, unix.MNT_DETACH) }) })
			p := r.pod(func(c *v1.PodSandboxConfig) { c.LogDirectory = logs })
			c := p.create(busybox("logs", "echo fine"))
			err := r.n.Runtime.StartContainer(ctx(), c.cid)
			r.wantCode(err, codes.ResourceExhausted, p.id, "container logs", "no space left on device",
				"the file system of "+logs, "inodes", "remove containers")
			r.ok(r.n.Space.Do(func() error { return os.Remove(filepath.Join(logs, "other")) }))
			r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
			r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
			r.ok(r.n.Runtime.RemovePodSandbox(ctx(), p.id))
		})
	}
}
