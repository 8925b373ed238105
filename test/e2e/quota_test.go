package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/volume"
)

// What the containers of these tests may write: less than the program of the image has.
const storageBytes, storageInodes = 4 << 20, 300

// limitedHandler is a handler with these limits.
const limitedHandler = `
[runtimes.limited]
path = %q
storage_size = 4194304
storage_inodes = 300
storage_without_quota = %q
`

// tablesOf is limitedHandler for a runtime.
func tablesOf(t *testing.T, runtime, without string) string {
	t.Helper()
	program, err := exec.LookPath(runtime)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(limitedHandler, program, without)
}

// onQuota makes a node whose root is on a file system with project quota. Where the kernel has none the test is
// skipped: it runs in the virtual machine.
func onQuota(t *testing.T, runtime string, kind volume.Kind, o node.Options) *small {
	t.Helper()
	if err := kind.Available(); err != nil {
		t.Skip(err)
	}
	var mkfs []string
	if kind == volume.Ext4 {
		mkfs = []string{"-O", "quota,project", "-E", "quotatype=prjquota"}
	}
	v, err := volume.Make(t.TempDir(), kind, 128, mkfs...)
	if err != nil {
		t.Fatal(err)
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	kernel := unix.ByteSliceToString(uts.Release[:])
	if err := v.Mount(t.TempDir(), "prjquota"); err != nil {
		t.Skipf("kernel %s has no project quota for %s, which make test-vm has: %v", kernel, kind, err)
	}
	if err := v.Unmount(); err != nil {
		t.Fatal(err)
	}
	t.Logf("on %s with project quota, kernel %s, %s", kind, kernel, runtime)
	o.Runtime, o.Tables = runtime, o.Tables+tablesOf(t, runtime, "refuse")
	o.Mount = func(root string) error { return v.Mount(root, "prjquota") }
	return &small{rig: ownNode(t, o), v: v, fill: volume.Fill}
}

// eachQuota runs f on a node of each file system with quota, and of each runtime.
func eachQuota(t *testing.T, o node.Options, f func(s *small)) {
	t.Parallel()
	for _, kind := range []volume.Kind{volume.Ext4, volume.XFS} {
		for _, runtime := range runtimes() {
			t.Run(string(kind)+" "+runtime, func(t *testing.T) {
				t.Parallel()
				s := onQuota(t, runtime, kind, o)
				s.pull("busybox:latest")
				f(s)
			})
		}
	}
}

// storage is what a verbose status says of a container's limits.
type storage struct {
	LimitBytes, LimitInodes, UsedBytes, UsedInodes uint64
	Kept                                           bool
}

func (c *ctr) storage() *storage {
	c.Helper()
	resp, err := c.n.Runtime.ContainerStatus(ctx(), c.cid, true)
	c.ok(err)
	var info struct{ Storage *storage }
	c.ok(json.Unmarshal([]byte(resp.Info["info"]), &info))
	return info.Storage
}

func sleeper(name string, edits ...edit) *v1.ContainerConfig {
	return busybox(name, "sleep 1000000", edits...)
}

// wantFilled has a container take room in each of the ways, and wants that to end at its limit.
func (c *ctr) wantFilled(ways ...string) {
	c.Helper()
	lines := strings.Split(strings.TrimSpace(c.exec(append([]string{"/webapp", "fill"}, ways...)...)), "\n")
	if len(lines) != len(ways) {
		c.Fatalf("%v: %q", ways, lines)
	}
	for i, way := range ways {
		c.wantEnd(way, lines[i])
	}
}

func (c *ctr) wantEnd(way, line string) {
	c.Helper()
	var name, why string
	var got int
	if _, err := fmt.Sscan(line, &name, &got, &why); err != nil || name != way {
		c.Errorf("%s: %q: %v", way, line, err)
		return
	}
	least, most := storageBytes/2, storageBytes
	ends := []string{"EDQUOT", "ENOSPC"}
	switch way {
	case "mmap":
		ends = []string{"SIGBUS"}
	case "files":
		least, most = storageInodes-100, storageInodes
	case "change", "link-image", "rename-image":
		least, most = 0, 0
	}
	if !strings.Contains(strings.Join(ends, " "), why) || got < least || got > most {
		c.Errorf("%s: %d, %s; wanted %d to %d, %v", way, got, why, least, most, ends)
	}
}

// TestStorageLimit has containers take room in each way that there is, with and without a user namespace, limited by
// their handler and by their pod.
func TestStorageLimit(t *testing.T) {
	all := []string{
		"write", "tmpfile", "rename", "link", "allocate", "mmap", "files", "change", "link-image", "rename-image", "keep",
	}
	byPod := func(c *v1.PodSandboxConfig) {
		annotated("pod.berth/storage-size", "4Mi")(c)
		annotated("pod.berth/storage-inodes", "300")(c)
	}
	privileged := security(func(s *v1.LinuxContainerSecurityContext) { s.Privileged = true })
	eachQuota(t, node.Options{}, func(s *small) {
		for name, c := range map[string]struct {
			handler string
			pod     []func(*v1.PodSandboxConfig)
			edits   []edit
			ways    []string
		}{
			"handler": {handler: "limited", ways: all},
			"userns":  {handler: "limited", pod: []func(*v1.PodSandboxConfig){inUserns}, ways: all},
			"pod":     {pod: []func(*v1.PodSandboxConfig){byPod}, ways: []string{"write", "files"}},
			"privileged": {handler: "limited", edits: []edit{privileged}, ways: []string{"write", "allocate", "files", "change"},
				pod: []func(*v1.PodSandboxConfig){func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true }}},
		} {
			s.sub(name, func(r rig) {
				p := r.podOf(c.handler, c.pod...)
				ctr := p.start(sleeper("main", append(c.edits, p.like())...))
				got := ctr.storage()
				if got == nil || got.LimitBytes != storageBytes || got.LimitInodes != storageInodes || !got.Kept {
					r.Fatalf("limits: %+v", got)
				}
				ctr.wantFilled(c.ways...)
				stats := squeeze(r.mustBerth("stats", "--no-stream", ctr.cid))
				if !strings.Contains(stats, "of 4.2 MB") || !strings.Contains(stats, "of 300") {
					r.Errorf("berth stats: %s", stats)
				}
				if got := ctr.storage(); got.UsedBytes > storageBytes || got.UsedInodes > storageInodes {
					r.Errorf("used: %+v", got)
				}
				other := p.start(sleeper("other", append(c.edits, p.like())...))
				r.wantText("another container of the pod", other.exec("sh", "-c", "echo 1 >/there && cat /there"), "1")
			})
		}
		if doctor, _, _ := s.berth("doctor"); !strings.Contains(doctor, "keeps containers to theirs") {
			s.Errorf("berth doctor: %s", doctor)
		}
		s.noQuotasLeft()
	})
}

// wantLimitTold has a watched container write more than it may, and wants those to be told who ask for it, and nobody
// else.
func (r rig) wantLimitTold(c *ctr) {
	r.Helper()
	kubelet := r.listen()
	events, out := r.n.Command("events", "--kind", "limit", "--container", "main"), &buffer{}
	events.Stdout, events.Stderr = out, out
	r.ok(r.n.Space.Start(events))
	r.Cleanup(func() {
		_ = events.Process.Signal(os.Interrupt)
		if err := events.Wait(); err != nil {
			r.Errorf("berth events: %v", err)
		}
	})
	r.eventually("berth events listens", func() bool { return strings.HasPrefix(out.String(), "TIME") })
	c.wantWritten()
	r.eventually("the limit is told", func() bool { return strings.Contains(out.String(), "StorageLimit: ") })
	stats := squeeze(r.mustBerth("stats", "--no-stream", c.cid))
	if !strings.Contains(stats, "of 4.2 MB") || !strings.Contains(stats, "of 300") {
		r.Errorf("berth stats: %s", stats)
	}
	metrics, err := r.n.Runtime.ListPodSandboxMetrics(ctx())
	r.ok(err)
	values := map[string]uint64{}
	for _, p := range metrics {
		for _, m := range p.GetContainerMetrics() {
			for _, v := range m.GetMetrics() {
				if m.GetContainerId() == c.cid {
					values[v.GetName()] = v.GetValue().GetValue()
				}
			}
		}
	}
	if values["container_fs_limit_bytes"] != storageBytes || values["container_fs_inodes_total"] != storageInodes ||
		values["container_fs_inodes_free"] >= storageInodes {
		r.Errorf("metrics: %v", values)
	}
	doctor, _, _ := r.berth("doctor")
	if !strings.Contains(doctor, c.cid) || !strings.Contains(doctor, "that it may write to its root") {
		r.Errorf("berth doctor: %s", doctor)
	}
	if n := strings.Count(out.String(), "StorageLimit"); n != 1 {
		r.Errorf("it was told %d times: %s", n, out)
	}
	kubelet.stop()
	<-kubelet.end
	for len(kubelet.got) > 0 {
		if e := <-kubelet.got; e.ContainerEventType > v1.ContainerEventType_CONTAINER_DELETED_EVENT {
			r.Errorf("the kubelet's client got %v", e)
		}
	}
}

// wantWritten has a container write more than it may where nobody keeps it to that.
func (c *ctr) wantWritten() {
	c.Helper()
	c.wantText("what is written", c.exec("sh", "-c", "head -c 5000000 /dev/zero >/big && sync && echo written"), "written")
}

// noQuotasLeft wants no number of a project to keep a limit once its container is removed.
func (s *small) noQuotasLeft() {
	s.Helper()
	var left []string
	s.on(func(root string) error {
		f, err := os.Open(root)
		if err != nil {
			return err
		}
		defer f.Close()
		left, err = quotas(f)
		return err
	})
	if len(left) > 0 {
		s.Errorf("limits of containers that are gone: %v", left)
	}
}

// quotas lists the projects of Berth's that have a limit.
func quotas(f *os.File) (all []string, err error) {
	const next = 0x800009<<8 | 2 // QCMD(Q_GETNEXTQUOTA, PRJQUOTA)
	for id := uint32(0xb0000000); ; id++ {
		var q struct {
			hardSpace, softSpace, space, hardInodes, softInodes, inodes, spaceTime, inodesTime uint64
			valid, id                                                                          uint32
		}
		_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), next, uintptr(id), uintptr(unsafe.Pointer(&q)), 0, 0)
		if errors.Is(errno, unix.ENOENT) || errors.Is(errno, unix.ESRCH) {
			return all, nil
		}
		if errno != 0 {
			return all, fmt.Errorf("list the quotas: %w", errno)
		}
		if id = q.id; q.hardSpace > 0 || q.hardInodes > 0 {
			all = append(all, fmt.Sprintf("%#x: %d KiB, %d inodes", id, q.hardSpace, q.hardInodes))
		}
	}
}

// TestStorageLimitOutlivesTheDaemon kills the daemon while containers run, and between the making of a container's
// directory and its limit.
func TestStorageLimitOutlivesTheDaemon(t *testing.T) {
	eachQuota(t, node.Options{Fault: true}, func(s *small) {
		p := s.podOf("limited")
		first := p.start(sleeper("first"))
		s.ok(s.n.Kill9())
		s.ok(s.n.Start("BERTH_FAULT=container.storage.before=kill"))
		first.wantFilled("write")
		if _, err := s.n.Runtime.CreateContainer(ctx(), p.id, sleeper("cut"), p.config); err == nil {
			t.Error("the daemon was not killed")
		}
		s.ok(s.n.Start())
		cut := p.start(sleeper("cut"))
		for _, c := range []*ctr{first, cut} {
			if got := c.storage(); got == nil || got.LimitBytes != storageBytes || !got.Kept {
				s.Errorf("after the daemon was killed: %+v", got)
			}
			c.wantFilled("write", "files")
			s.ok(s.n.Runtime.RemoveContainer(ctx(), c.cid))
		}
		s.noQuotasLeft()
	})
}

// TestStorageWithoutQuota has pods with limits on a file system without quota: refused by one handler, watched by
// another, which says so.
func TestStorageWithoutQuota(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			watched := strings.Replace(tablesOf(t, runtime, "watch"), "runtimes.limited", "runtimes.watched", 1)
			tables := tablesOf(t, runtime, "refuse") + watched
			r := ownNode(t, node.Options{Runtime: runtime, Tables: tables, Mount: func(root string) error {
				return unix.Mount("tmpfs", root, "tmpfs", 0, "size=256m")
			}})
			r.pull("busybox:latest")
			_, err := r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod(unique(r.T)), "limited")
			r.wantCode(err, codes.FailedPrecondition, "project", "storage_without_quota", "berth doctor")
			c := r.podOf("watched").start(sleeper("main"))
			if got := c.storage(); got == nil || got.LimitBytes != storageBytes || got.LimitInodes != storageInodes || got.Kept {
				r.Errorf("watched: %+v", got)
			}
			r.wantLimitTold(c)
			unlimited := func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-unlimited" }
			if got := r.pod(unlimited).start(sleeper("main")).storage(); got != nil {
				r.Errorf("without a limit: %+v", got)
			}
			for _, a := range []struct{ handler, name, value, word string }{
				{"watched", "size", "5Mi", "storage_size"}, {"watched", "inodes", "301", "storage_inodes"},
				{"", "size", "much", "quantity"}, {"", "size", "0", "at least"}, {"", "size", "10E", "at most"},
				{"", "size", "-1Gi", "quantity"}, {"", "inodes", "", "quantity"}, {"", "inodes", "63", "at least 64"},
			} {
				config := r.n.Pod(unique(r.T), annotated("pod.berth/storage-"+a.name, a.value))
				_, err := r.n.Runtime.RunPodSandbox(ctx(), config, a.handler)
				r.wantCode(err, codes.InvalidArgument, "pod.berth/storage-"+a.name, a.word)
			}
		})
	}
}
