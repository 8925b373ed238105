package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/test/node"
)

// onV2 skips a test that is about the unified hierarchy where there is none.
func onV2(t *testing.T) {
	t.Helper()
	if cgroup.Mode() != cgroup.V2 {
		t.Skip("this machine has no cgroup v2: make test-vm has")
	}
}

// onSystemd skips a test of systemd's units where systemd does not make the cgroups.
func onSystemd(r rig) {
	r.Helper()
	if !node.GroupsOf(r.n).Systemd {
		r.Skip("systemd is not the cgroup driver here: make test-vm has a machine where it is")
	}
}

// resources edits what a container gets.
func resources(f func(*v1.LinuxContainerResources)) edit {
	return func(c *v1.ContainerConfig) { f(c.Linux.Resources) }
}

// groupDirs are the container's cgroup and the one that some runtimes make in it for its processes.
func (c *ctr) groupDirs() []string {
	c.Helper()
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasSuffix(path, "/"+node.GroupsOf(c.n).Container(c.cid)) &&
			!strings.Contains(path, "/containers/") {
			found = append(found, path, path+"/container")
		}
		return nil
	})
	return found
}

// setting is what a cgroup file of the container says, in any of its groups.
func (c *ctr) setting(name string) string {
	c.Helper()
	var all []string
	for _, dir := range c.groupDirs() {
		if data, err := os.ReadFile(dir + "/" + name); err == nil {
			all = append(all, strings.TrimSpace(string(data)))
		}
	}
	return strings.Join(all, " ")
}

// TestUnifiedResources gives a container what kubelets send for cgroup v2.
func TestUnifiedResources(t *testing.T) {
	onV2(t)
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 100", resources(func(l *v1.LinuxContainerResources) {
			l.CpuPeriod, l.CpuQuota = 100000, 150000
			l.MemoryLimitInBytes, l.MemorySwapLimitInBytes = 64<<20, 64<<20
			l.Unified = map[string]string{
				"memory.high": "58720256", "memory.min": "16777216", "memory.low": "20971520", "memory.oom.group": "1",
				"pids.max": "77",
			}
			l.HugepageLimits = []*v1.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}}
		})))
		for name, want := range map[string]string{
			"memory.max": "67108864", "memory.swap.max": "0", "memory.high": "58720256", "memory.min": "16777216",
			"memory.low":       "20971520",
			"memory.oom.group": "1", "pids.max": "77", "cpu.max": "150000 100000", "hugetlb.2MB.max": "4194304",
		} {
			if got := c.setting(name); !strings.Contains(" "+got+" ", " "+want+" ") {
				r.Errorf("%s is %q, wanted %s", name, got, want)
			}
		}
	})
}

// TestUpdatesAreExact changes one limit after the other, each exactly and without a change of another. Of the scope of
// a container, systemd knows quotas in whole percents, and not all that the runtime has limited.
func TestUpdatesAreExact(t *testing.T) {
	onV2(t)
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "sleep 100", resources(func(l *v1.LinuxContainerResources) {
			l.CpuPeriod, l.CpuQuota, l.CpuShares = 100000, 150000, 512
			l.MemoryLimitInBytes, l.MemorySwapLimitInBytes = 64<<20, 64<<20
			l.Unified = map[string]string{"memory.oom.group": "1"}
		})))
		now := map[string]string{
			"cpu.max": "150000 100000", "memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1",
		}
		for _, update := range []struct {
			limits    *v1.LinuxContainerResources
			file, has string
		}{
			{&v1.LinuxContainerResources{CpuQuota: 15500}, "cpu.max", "15500 100000"},
			{&v1.LinuxContainerResources{MemoryLimitInBytes: 96 << 20}, "memory.max", "100663296"},
			{&v1.LinuxContainerResources{CpuShares: 1024}, "", ""},
		} {
			r.ok(c.limit(update.limits))
			if update.file != "" {
				now[update.file] = update.has
			}
			for name, want := range now {
				if got := c.setting(name); !strings.Contains(" "+got+" ", " "+want+" ") {
					r.Errorf("after %v, %s is %q, wanted %s", update.limits, name, got, want)
				}
			}
			for _, dir := range c.groupDirs() { // of crun's there is one below the scope
				got, err := os.ReadFile(dir + "/cpu.max")
				if err == nil && strings.TrimSpace(string(got)) != now["cpu.max"] {
					r.Errorf("after %v, cpu.max of %s is %s, wanted %s", update.limits, dir, got, now["cpu.max"])
				}
			}
		}
	})
}

// TestLimitBelowTheCache lowers the limit of a container below what is in use, of which most is the cache of a file
// that it has read. The kernel gives that back: when it is asked to, or by itself where it cannot be asked (before
// Linux 5.19).
func TestLimitBelowTheCache(t *testing.T) {
	onV2(t)
	each(t, func(r rig) {
		const size, limit = 64 << 20, 32 << 20
		dir := cacheable(r, size)
		c := r.pod().start(busybox("main", "cat /data/file >/dev/null; echo read; sleep 1000", func(c *v1.ContainerConfig) {
			c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.MemorySwapLimitInBytes = 4*size, 4*size
			c.Mounts = []*v1.Mount{{HostPath: dir, ContainerPath: "/data", Readonly: true}}
		}))
		c.logged("read\n")
		first, _, _ := strings.Cut(c.setting("memory.current"), " ")
		if used, err := strconv.Atoi(first); err != nil || used < (size+limit)/2 {
			r.Fatalf("%q bytes are in use after %d were read", first, size)
		}
		r.ok(c.limit(&v1.LinuxContainerResources{MemoryLimitInBytes: limit}))
		if got, want := c.setting("memory.max"), strconv.Itoa(limit); !slices.Contains(strings.Fields(got), want) {
			r.Errorf("memory.max is %q", got)
		}
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("the container is %v", st)
		}
		// What is not cache cannot be given back.
		r.wantCode(c.limit(&v1.LinuxContainerResources{MemoryLimitInBytes: 4096}), codes.FailedPrecondition, "in use")
	})
}

// cacheable is a directory on a disk with a file of so many bytes, none of which the kernel has in its cache.
func cacheable(r rig, size int) (dir string) {
	r.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "berth-test-")
	r.ok(err)
	r.Cleanup(func() { _ = os.RemoveAll(dir) })
	var fs unix.Statfs_t
	r.ok(unix.Statfs(dir, &fs))
	if fs.Type == unix.TMPFS_MAGIC {
		r.Skip("/var/tmp is not on a disk")
	}
	r.ok(os.Chmod(dir, 0o755))
	f, err := os.Create(dir + "/file")
	r.ok(err)
	defer f.Close()
	_, err = f.Write(make([]byte, size))
	r.ok(errors.Join(err, f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)))
	return dir
}

// TestWeightAndSwap gives containers of one pod shares of the processor and leaves to swap, as a kubelet does by their
// requests.
func TestWeightAndSwap(t *testing.T) {
	onV2(t)
	each(t, func(r rig) {
		p := r.pod()
		with := func(name string, shares, swap int64) *ctr {
			return p.start(busybox(name, "sleep 100", resources(func(l *v1.LinuxContainerResources) {
				l.CpuShares, l.MemoryLimitInBytes, l.MemorySwapLimitInBytes = shares, 64<<20, swap
			})))
		}
		least, some, more := with("least", 2, 64<<20), with("some", 1024, 96<<20), with("more", 4096, -1)
		weights := []int{least.weight(), some.weight(), more.weight()}
		// Runtimes convert shares in more than one way. What has the least gets the least there is, and twice the shares
		// more.
		if weights[0] != 1 || weights[1] <= weights[0] || weights[2] <= weights[1] {
			r.Errorf("cpu.weight of 2, 1024 and 4096 shares: %v", weights)
		}
		for c, want := range map[*ctr]string{least: "0", some: "33554432", more: "max"} {
			// crun has systemd give the scope more, and limits the group in it to what was asked for.
			if got := strings.Fields(c.setting("memory.swap.max")); !slices.Contains(got, want) {
				r.Errorf("memory.swap.max of %s is %v, wanted %s", c.status().Metadata.Name, got, want)
			}
		}
		// One that gets the shares of another later gets the same weight, which its own before does not show.
		r.ok(least.limit(&v1.LinuxContainerResources{CpuShares: 1024}))
		if got := least.weight(); got != weights[1] {
			r.Errorf("cpu.weight of 1024 shares instead of 2 is %d, and %d of one that had them before", got, weights[1])
		}
	})
}

// weight is the container's part of the processor, among its pod's.
func (c *ctr) weight() int {
	c.Helper()
	first, _, _ := strings.Cut(c.setting("cpu.weight"), " ")
	n, err := strconv.Atoi(first)
	c.ok(err)
	return n
}

// TestOutOfMemoryGroup has one process of a container run out of memory: alone, or with all others where the kernel is
// told so.
func TestOutOfMemoryGroup(t *testing.T) {
	onV2(t)
	each(t, func(r rig) {
		p := r.pod()
		for group, want := range map[string]int32{"0": 5, "1": 137} {
			st := p.start(busybox("group"+group, "/webapp alloc 300; exit 5", resources(func(l *v1.LinuxContainerResources) {
				l.MemoryLimitInBytes, l.MemorySwapLimitInBytes = 64<<20, 64<<20
				l.Unified = map[string]string{"memory.oom.group": group}
			}))).finish()
			if st.ExitCode != want || (want == 137) != (st.Reason == "OOMKilled") {
				r.Errorf("memory.oom.group %s: exit code %d, reason %q; wanted %d", group, st.ExitCode, st.Reason, want)
			}
		}
	})
}

// TestOutOfMemoryWhileTheMonitorSleeps has systemd take the scope away before the monitor sees the end of its
// container.
func TestOutOfMemoryWhileTheMonitorSleeps(t *testing.T) {
	onV2(t)
	own(t, func(r rig) {
		onSystemd(r)
		dir := t.TempDir()
		p := r.pod()
		c := p.start(
			busybox("main", "until [ -e /signs/go ]; do sleep 0.1; done; exec /webapp alloc 300", func(c *v1.ContainerConfig) {
				c.Linux.Resources.MemoryLimitInBytes, c.Linux.Resources.MemorySwapLimitInBytes = 64<<20, 64<<20
				c.Mounts = []*v1.Mount{{HostPath: dir, ContainerPath: "/signs"}}
			}))
		quiet := p.start(
			busybox("quiet", "until [ -e /signs/go ]; do sleep 0.1; done; kill -9 $$", func(c *v1.ContainerConfig) {
				c.Mounts = []*v1.Mount{{HostPath: dir, ContainerPath: "/signs"}}
			}))
		monitor := p.monitor()
		r.ok(syscall.Kill(monitor, syscall.SIGSTOP))
		r.ok(os.WriteFile(dir+"/go", nil, 0o644))
		r.eventually("systemd has removed the scope", func() bool { return len(c.groupDirs()) == 0 })
		r.ok(syscall.Kill(monitor, syscall.SIGCONT))
		if st := c.finish(); st.ExitCode != 137 || st.Reason != "OOMKilled" {
			r.Errorf("code %d, reason %q %q", st.ExitCode, st.Reason, st.Message)
		}
		quiet.stop()
	})
}

func (c *ctr) stop() {
	c.Helper()
	c.ok(c.n.Runtime.StopContainer(ctx(), c.cid, 0))
}

// monitor is the process that holds the pod.
func (p *pod) monitor() int {
	p.Helper()
	var found []int
	p.eventually("the pod has one monitor", func() bool { // a child of it looks like it until its exec
		found = processesIn(p.n.Instance, "-dir "+p.n.State+"/pods/"+p.id)
		return len(found) == 1
	})
	return found[0]
}

func (r rig) systemctl(args ...string) string {
	r.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		r.Fatalf("systemctl %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestUnits looks at the units of a pod, its container and its monitor as systemd has them.
func TestUnits(t *testing.T) {
	own(t, func(r rig) {
		onSystemd(r)
		kube := node.GroupsOf(r.n).KubePod("units")
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Linux.CgroupParent = kube })
		c := p.start(webapp("main", "count 50ms 1000000"))
		c.logged("tick 2\n")
		scope, monitors := node.GroupsOf(r.n).Container(c.cid), r.n.Instance+"-monitors.scope"
		show := func(unit string) string {
			return strings.ReplaceAll(r.systemctl("show", "-p", "ActiveState,Slice,Delegate", unit), "\n", " ")
		}
		if got, want := show(scope), "Slice="+filepath.Base(kube)+" Delegate=yes ActiveState=active"; got != want {
			r.Errorf("the container's scope: %s, wanted %s", got, want)
		}
		if got, want := show(monitors), "Slice="+r.n.Instance+".slice Delegate=yes ActiveState=active"; got != want {
			r.Errorf("the monitors' scope: %s, wanted %s", got, want)
		}
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.monitor()))
		r.ok(err)
		if want := monitors + "/monitors/" + p.id; !strings.Contains(string(groups), want) {
			r.Errorf("the monitor is in %s, wanted %s", groups, want)
		}
		// A node's administrator ends the container in systemd's way.
		r.systemctl("stop", scope)
		if st := c.finish(); st.ExitCode != 42 {
			r.Errorf("systemctl stop did not end the container as SIGTERM does: %v", st)
		}
	})
}

// TestPodAfterTheMonitorsScopeWasStopped stops the scope of all monitors under a running pod.
func TestPodAfterTheMonitorsScopeWasStopped(t *testing.T) {
	own(t, func(r rig) {
		onSystemd(r)
		p := r.pod()
		c := p.start(webapp("main", "count 50ms 1000000"))
		c.logged("tick 2\n")
		pid := c.pid("webapp")
		r.systemctl("stop", r.n.Instance+"-monitors.scope")
		r.eventually("a new monitor answers", func() bool {
			out, _, err := c.tryExec(0, "echo hi")
			return err == nil && out == "hi\n"
		})
		if c.pid("webapp") != pid {
			r.Error("the container did not live on")
		}
		if got := r.systemctl("is-active", r.n.Instance+"-monitors.scope"); got != "active" {
			r.Errorf("the monitors' scope is %s", got)
		}
	})
}

// TestSystemdRestarts has systemd execute itself anew, and the bus start anew, under a node with pods.
func TestSystemdRestarts(t *testing.T) {
	own(t, func(r rig) {
		onSystemd(r)
		old := r.pod()
		c := old.start(busybox("main", "sleep 100"))
		for _, how := range [][]string{{"daemon-reexec"}, {"restart", "dbus.service"}} {
			r.systemctl(how...)
			config := r.n.Pod(unique(t))
			id, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
			r.ok(err)
			p := &pod{r, id, config}
			if got := p.output(p.as(busybox("after", "echo there"))); got != "there\n" {
				r.Errorf("after systemctl %v a container said %q", how, got)
			}
			p.remove()
		}
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("the old container is %v", st.State)
		}
	})
}

// TestPrivilegedKeepsTheHierarchysOptions has a privileged container see the host's cgroups. The options of their
// hierarchy, which are the whole machine's, stay as they are.
func TestPrivilegedKeepsTheHierarchysOptions(t *testing.T) {
	onV2(t)
	each(t, func(r rig) {
		before := hierarchyOptions(r)
		if !strings.Contains(before, "nsdelegate") {
			r.Fatalf("the hierarchy is mounted %q before, without what could be lost", before)
		}
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
		c := p.start(busybox("main", "sleep 1000", privileged))
		got := c.exec("sh", "-c", "cd /sys/fs/cgroup && mkdir berth-own-$$ && cat berth-own-$$/cgroup.type; "+
			"rmdir berth-own-*; grep -c ' /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime' /proc/mounts")
		r.wantText("the cgroups of the host, writable", got, "domain\n1")
		if after := hierarchyOptions(r); after != before {
			r.Errorf("the hierarchy was mounted %q before, and is %q now", before, after)
		}
	})
}

// hierarchyOptions are those of the file system at /sys/fs/cgroup.
func hierarchyOptions(r rig) string {
	r.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	r.ok(err)
	for line := range strings.Lines(string(text)) {
		if head, tail, _ := strings.Cut(line, " - "); strings.Contains(head, " /sys/fs/cgroup ") {
			return strings.Fields(tail)[2]
		}
	}
	r.Fatal("nothing is mounted at /sys/fs/cgroup")
	return ""
}
