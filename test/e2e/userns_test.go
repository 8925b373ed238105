package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The ids of the pods with a user namespace in these tests, on the host.
const firstUID, firstGID = 200000, 300000

func idMapping(first uint32) []*v1.IDMapping {
	return []*v1.IDMapping{{ContainerId: 0, HostId: first, Length: 65536}}
}

// inUserns gives a pod a user namespace.
func inUserns(c *v1.PodSandboxConfig) {
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &v1.UserNamespace{
		Mode: v1.NamespaceMode_POD, Uids: idMapping(firstUID), Gids: idMapping(firstGID),
	}
}

// like gives a container the namespaces of its pod, as a kubelet does.
func (p *pod) like() edit {
	return security(func(s *v1.LinuxContainerSecurityContext) {
		s.NamespaceOptions = p.config.Linux.SecurityContext.NamespaceOptions
	})
}

// mapped asks for a mount whose ids are mapped as the pod's.
func mapped(m *v1.Mount) { m.UidMappings, m.GidMappings = idMapping(firstUID), idMapping(firstGID) }

func (r rig) wantOwner(path string, uid, gid uint32) {
	r.Helper()
	info, err := os.Lstat(path)
	r.ok(err)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != uid || st.Gid != gid {
		r.Errorf("%s belongs to %d:%d, wanted %d:%d", path, st.Uid, st.Gid, uid, gid)
	}
}

func TestUserns(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(inUserns, func(c *v1.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{"kernel.shmmax": "12345678", "net.ipv4.ip_unprivileged_port_start": "80"}
		})
		user := func(uid, gid int64, more ...int64) edit {
			return security(func(s *v1.LinuxContainerSecurityContext) {
				s.RunAsUser, s.RunAsGroup, s.SupplementalGroups = &v1.Int64Value{Value: uid}, &v1.Int64Value{Value: gid}, more
			})
		}
		for _, c := range []struct {
			name, script, want string
			edit               edit
		}{
			{"ids", "cat /proc/self/uid_map /proc/self/gid_map | tr -s ' '; id -u",
				fmt.Sprintf("0 %d 65536\n 0 %d 65536\n0", firstUID, firstGID), nil},
			{"root", "stat -c %u:%g / /bin /etc/passwd /dev /dev/shm /dev/mqueue /etc/hosts /etc/hostname /etc/resolv.conf | " +
				"sort -u", "0:0", nil},
			{"writes", "mkdir /made && echo x > /made/f && chown 7:8 /made/f && stat -c %u:%g /made /made/f; rm /etc/hostname " +
				"2>/dev/null; echo more >> /etc/hosts && echo done",
				"0:0\n7:8\ndone", nil},
			{"hostname", "hostname; hostname other 2>/dev/null || echo refused", unique(r.T) + "\nrefused", nil},
			{"own-hostname", "hostname other && hostname", "other", caps([]string{"SYS_ADMIN"}, nil)},
			{"user", "id -u; id -g; id -G; touch /tmp/x && stat -c %u:%g /tmp/x; touch /x 2>/dev/null || echo refused",
				"1000\n50\n50 777 4000 5000\n1000:50\nrefused", user(1000, 50, 4000, 5000)},
			{"stdio", "echo one > /dev/stdout; echo two > /dev/stderr; echo three", "one\nthree", user(1000, 50)},
			{"sysctl", "cat /proc/sys/kernel/shmmax /proc/sys/net/ipv4/ip_unprivileged_port_start", "12345678\n80", nil},
			{"devices", "echo x > /dev/null && head -c 2 /dev/zero | wc -c; test -c /dev/pts/ptmx && ls /dev/mqueue; test -c " +
				"/dev/kmsg || echo absent", "2\nabsent", nil},
			{"network", "ip link add v0 type veth peer name v1 && ip link | grep -c v0@", "1", caps([]string{"NET_ADMIN"}, nil)},
			{"mount", "mount -t tmpfs none /tmp && echo mounted; mount -t proc none /proc && echo proc", "mounted\nproc",
				both(caps([]string{"SYS_ADMIN"}, nil),
					seccomp(v1.SecurityProfile_Unconfined, ""), confined(v1.SecurityProfile_Unconfined, ""))},
			{"no-power-over-the-host", "date -s 2020-01-01 2>&1 | grep -o permitted; echo 1 2>/dev/null > " +
				"/proc/sys/vm/swappiness || echo refused; mknod /tmp/d b 8 0 2>/dev/null || echo refused",
				"permitted\nrefused\nrefused", both(caps([]string{"ALL"}, nil), seccomp(v1.SecurityProfile_Unconfined, ""))},
			{"sys", "ls /sys/class/net; touch /sys/x 2>/dev/null || echo refused; ls /sys/fs/cgroup | grep -c .", "", nil},
		} {
			if c.edit == nil {
				c.edit = func(*v1.ContainerConfig) {}
			}
			out := p.output(busybox(c.name, c.script, p.like(), c.edit))
			if c.want != "" {
				r.wantText(c.name, out, c.want)
			} else if !strings.Contains(out, "eth0") || !strings.Contains(out, "refused") {
				r.Errorf("%s: %q", c.name, out)
			}
		}
		options := p.status().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions()
		if options.GetMode() != v1.NamespaceMode_POD || len(options.GetUids()) != 1 || options.Uids[0].HostId != firstUID {
			r.Errorf("the status shows %v", options)
		}
	})
}

// TestUsernsOnTheHost looks at a container with a user namespace from outside, and into it by exec.
func TestUsernsOnTheHost(t *testing.T) {
	each(t, func(r rig) {
		null, err := os.Stat("/dev/null")
		r.ok(err)
		p := r.pod(inUserns)
		c := p.start(busybox("main", "echo up; sleep 1000", p.like()))
		c.logged("up")
		pid := r.pidOf(c.cid)
		r.wantOwner(fmt.Sprintf("/proc/%d", pid), firstUID, firstGID)
		r.wantOwner(c.log, 0, 0)

		c.exec("sh", "-c", "echo x > /written; chown 3:4 /written")
		root := fmt.Sprintf("/proc/%d/root", pid)
		r.wantOwner(root+"/written", firstUID+3, firstGID+4)
		// It is kept as the container sees it, and the layers are as they were.
		r.wantOwner(filepath.Join(r.n.Root, "pods", p.id, "c", c.cid, "upper/written"), 3, 4)

		r.wantText("exec's ids", c.exec("sh", "-c", "id -u; cat /proc/self/uid_map | tr -s ' '"),
			fmt.Sprintf("0\n 0 %d 65536", firstUID))
		r.wantText("exec's streams", c.exec("sh", "-c", "echo one > /dev/stdout; cat < /dev/null > /dev/stdout; echo two"),
			"one\ntwo")
		for _, ns := range []string{"net", "ipc", "uts"} {
			see := "readlink /proc/self/ns/" + ns + "; readlink /proc/self/ns/user"
			other, mine := p.output(busybox("see-"+ns, see, p.like())), c.exec("sh", "-c", see)
			r.wantText("the namespaces of another container", other, mine)
		}
		after, err := os.Stat("/dev/null")
		r.ok(err)
		if after.Sys().(*syscall.Stat_t).Uid != null.Sys().(*syscall.Stat_t).Uid {
			r.Error("the host's /dev/null has changed hands")
		}
	})
}

// pidOf finds the first process of a container.
func (r rig) pidOf(cid string) int {
	r.Helper()
	resp, err := r.n.Runtime.ContainerStatus(ctx(), cid, true)
	r.ok(err)
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(resp.Info["info"]), &info); err != nil || info.PID == 0 {
		r.Fatalf("the status names no process: %v, %v", resp.Info, err)
	}
	return info.PID
}

func TestUsernsVolumes(t *testing.T) {
	each(t, func(r rig) {
		dir, p := r.volume(), r.pod(inUserns)
		closed := filepath.Join(dir, "closed") // as the kubelet's own directory is
		r.ok(os.MkdirAll(closed+"/vol", 0o755))
		r.ok(os.WriteFile(closed+"/vol/note", []byte("closed\n"), 0o600))
		r.ok(os.Chmod(closed, 0o700))
		r.ok(os.Chown(dir+"/real/note", 5, 6))
		r.mountInside(dir+"/real/sub", 0)
		strict := filepath.Join(dir, "strict") // as what systemd mounts at /tmp and /run
		r.ok(os.Mkdir(strict, 0o755))
		r.mountInside(strict, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
		for _, c := range []struct {
			name, script, want string
			edit               edit
		}{
			{"strict", "touch /data/x 2>/dev/null || echo refused; grep -o '/data [^ ]* [^ ]*' /proc/mounts | tr , '\\n' | " +
				"grep -e noexec -e nosuid -e nodev | sort",
				"refused\nnodev\nnoexec\nnosuid", mount(strict, "/data", mapped, readOnly)},
			{"mapped", "stat -c %u:%g /data /data/note /data/sub; echo x > /data/made; stat -c %u:%g /data/made",
				"0:0\n5:6\n0:0\n0:0", mount(dir+"/real", "/data", mapped)},
			{"below-a-closed-directory", "cat /data/note; echo more >> /data/note && echo written", "closed\nwritten",
				mount(closed+"/vol", "/data", mapped)},
			{"file", "cat /etc/given; stat -c %u:%g /etc/given", "from the host\n0:0", mount(dir+"/file", "/etc/given", mapped)},
			{"not-mapped", "stat -c %u:%g /data; cat /data/note; touch /data/x 2>/dev/null || echo refused",
				"65534:65534\nreal\nrefused", mount(dir+"/real", "/data")},
			{"read-only", "cat /data/note; touch /data/x 2>/dev/null || echo refused", "real\nrefused",
				mount(dir+"/real", "/data", mapped, readOnly)},
			{"recursive", "touch /data/x 2>/dev/null || echo refused; touch /data/sub/x 2>/dev/null || echo refused",
				"refused\nrefused",
				mount(dir+"/real", "/data", mapped, readOnly, recursive)},
			{"nested", "cat /data/note /data/sub/note", "real\nreal",
				both(mount(dir+"/real", "/data/sub", mapped), mount(dir+"/real", "/data", mapped))},
			{"options", "grep -o '/data [^ ]* [^ ]*' /proc/mounts | tr , '\\n' | grep -e noexec -e nosuid | sort",
				"noexec\nnosuid",
				mount(dir+"/real", "/data", mapped, func(m *v1.Mount) { m.MountOptions = []string{"noexec", "nosuid"} })},
		} {
			r.wantText(c.name, p.output(busybox(c.name, c.script, p.like(), c.edit)), c.want)
		}
		for _, image := range []string{"data:latest", "one:latest"} {
			out := p.output(busybox(strings.TrimSuffix(image, ":latest"), "stat -c %u:%g /v/model/a; cat /v/model/a; touch "+
				"/v/new 2>/dev/null || echo refused", p.like(),
				imageMount(r.imageID(image), "/v")))
			if !strings.HasPrefix(out, "0:0\na ") || !strings.HasSuffix(out, "refused\n") {
				r.Errorf("image volume %s: %q", image, out)
			}
		}
		r.wantOwner(dir+"/real/made", 0, 0) // on the volume it is what the container sees

		bad := busybox("proc", "true", p.like(), mount("/proc/sys", "/data", mapped))
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, bad, p.config)
		r.wantCode(err, codes.FailedPrecondition, "/proc/sys", "proc")
		bad = busybox("both-ways", "true", p.like(), mount(dir+"/real", "/data", func(m *v1.Mount) {
			m.Propagation = v1.MountPropagation_PROPAGATION_BIDIRECTIONAL
		}))
		_, err = r.n.Runtime.CreateContainer(ctx(), p.id, bad, p.config)
		r.wantCode(err, codes.InvalidArgument, "appear on the host")
		p.wantNoContainer("proc")
		p.wantNoContainer("both-ways")
	})
}

// TestMappedVolumeWithoutUserns has a volume of which only the ids are mapped.
func TestMappedVolumeWithoutUserns(t *testing.T) {
	each(t, func(r rig) {
		dir, p := r.volume(), r.pod()
		r.wantText("owner", p.output(busybox("c", "stat -c %u:%g /data", mount(dir+"/real", "/data", mapped))),
			fmt.Sprintf("%d:%d", firstUID, firstGID))
	})
}

func TestMountOptions(t *testing.T) {
	each(t, func(r rig) {
		dir, p := r.volume(), r.pod()
		all := func(m *v1.Mount) { m.MountOptions = []string{"noexec", "nosuid", "nodev", "noatime", "nodiratime"} }
		out := p.output(busybox("c", "grep ' /data ' /proc/mounts; cp /bin/busybox /data/tool; /data/tool true 2>/dev/null "+
			"|| echo refused", mount(dir+"/real", "/data", all)))
		for _, want := range []string{"noexec", "nosuid", "nodev", "noatime", "nodiratime", "refused"} {
			if !strings.Contains(out, want) {
				r.Errorf("no %s: %s", want, out)
			}
		}
		resp, err := r.n.Runtime.Status(ctx(), false)
		r.ok(err)
		if !resp.GetFeatures().GetMountOptions() {
			r.Error("the status does not tell of mount options")
		}
		for _, bad := range []string{"suid", "dev", "exec", "rw", "bind", "context=x"} {
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id,
				busybox("bad", "true", mount(dir+"/real", "/data", func(m *v1.Mount) { m.MountOptions = []string{bad} })), p.config)
			r.wantCode(err, codes.InvalidArgument, bad)
		}
	})
}

// TestUsernsPropagation makes a mount on the host before the container is created, and another after it has started. In
// a user namespace crun before 1.9 takes a volume without what is mounted below it.
func TestUsernsPropagation(t *testing.T) {
	version, err := exec.Command("crun", "--version").Output()
	alone := err == nil && strings.Contains(string(version), " 1.8")
	each(t, func(r rig) {
		dir, p := r.volume()+"/real", r.pod(inUserns)
		follow := func(m *v1.Mount) { m.Propagation = v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER }
		r.ok(os.MkdirAll(dir+"/before", 0o755))
		r.mountInside(dir+"/before", 0)
		c := p.start(busybox("c", "sleep 1000", p.like(), mount(dir, "/data", mapped, follow)))
		r.ok(os.MkdirAll(dir+"/later", 0o755))
		r.mountInside(dir+"/later", 0)
		for when, want := range map[string]bool{"before": !alone || !strings.HasSuffix(r.Name(), "/crun"), "later": true} {
			if got := strings.Contains(c.exec("cat", "/proc/mounts"), " /data/"+when+" "); got != want {
				r.Errorf("the mount of the host %s shows in the container: %v, wanted %v", when, got, want)
			}
		}
		r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
		if !r.isMounted(dir+"/later") || !r.isMounted(dir+"/before") {
			r.Error("the host's own mounts went with the container")
		}
	})
}

func TestUsernsHostNetwork(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(inUserns, hostNetwork)
		out := p.output(busybox("c", "readlink /proc/self/ns/net; id -u; cat /proc/self/uid_map | tr -s ' '; ls "+
			"/sys/class/net | grep -c lo; touch /sys/x 2>/dev/null || echo refused; ip link add d0 type veth peer name d1 "+
			"2>/dev/null || echo powerless",
			p.like(), caps([]string{"NET_ADMIN"}, nil)))
		var host string
		r.ok(r.n.Space.Do(func() (err error) {
			host, err = os.Readlink("/proc/thread-self/ns/net")
			return err
		}))
		r.wantText("the container", out, fmt.Sprintf("%s\n0\n 0 %d 65536\n1\nrefused\npowerless", host, firstUID))
	})
}

func TestUsernsSharedPID(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(inUserns, func(c *v1.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = v1.NamespaceMode_POD
		})
		a := p.start(busybox("a", "echo up; exec sleep 1000", p.like()))
		a.logged("up") // until then its process is its runtime's
		out := p.output(busybox("b", "ps -o pid,user,args", p.like()))
		if !strings.Contains(out, "/init init") || !strings.Contains(out, "sleep 1000") {
			r.Errorf("the container does not see the pod's processes: %s", out)
		}
		r.ok(r.n.Runtime.StopContainer(ctx(), a.cid, 0))
	})
}

// TestUsernsTerminal has a container with a terminal, which belongs to a group that only a mapping of some size has.
func TestUsernsTerminal(t *testing.T) {
	each(t, func(r rig) {
		for name, length := range map[string]uint32{"usual": 65536, "small": 3} {
			p := r.pod(func(c *v1.PodSandboxConfig) {
				c.Metadata.Name, c.Metadata.Uid = c.Metadata.Name+name, c.Metadata.Uid+name
				c.LogDirectory += name
			}, inUserns, func(c *v1.PodSandboxConfig) {
				u := c.Linux.SecurityContext.NamespaceOptions.UsernsOptions
				u.Uids[0].Length, u.Gids[0].Length = length, length
			})
			c := p.start(
				busybox("c", "test -t 0 && test -t 1 && echo yes; echo x > /dev/tty && tty", p.like(), func(c *v1.ContainerConfig) {
					c.Tty, c.Stdin = true, true
				}))
			c.finish()
			if out := c.text(""); !strings.Contains(out, "yes") || !strings.Contains(out, "/dev/") {
				r.Errorf("%s: %q", name, out)
			}
		}
	})
}

func TestBadUserns(t *testing.T) {
	each(t, func(r rig) {
		two := append(idMapping(1000), &v1.IDMapping{ContainerId: 0, HostId: 200000, Length: 65536})
		notRoot := []*v1.IDMapping{{ContainerId: 1, HostId: 1000, Length: 10}}
		for name, c := range map[string]struct {
			want string
			edit func(*v1.NamespaceOption)
		}{
			"container": {"only POD and NODE", func(o *v1.NamespaceOption) {
				o.UsernsOptions = &v1.UserNamespace{Mode: v1.NamespaceMode_CONTAINER}
			}},
			"target": {"only POD and NODE", func(o *v1.NamespaceOption) {
				o.UsernsOptions = &v1.UserNamespace{Mode: v1.NamespaceMode_TARGET}
			}},
			"no-ids": {"no uids", func(o *v1.NamespaceOption) { o.UsernsOptions = &v1.UserNamespace{} }},
			"twice":  {"overlap", func(o *v1.NamespaceOption) { o.UsernsOptions = &v1.UserNamespace{Uids: two, Gids: two} }},
			"no-root": {"uid 0 is not mapped", func(o *v1.NamespaceOption) {
				o.UsernsOptions = &v1.UserNamespace{Uids: notRoot, Gids: notRoot}
			}},
			"host-ipc": {"host's IPC or PID", func(o *v1.NamespaceOption) {
				o.Ipc, o.UsernsOptions = v1.NamespaceMode_NODE, &v1.UserNamespace{Uids: idMapping(1000), Gids: idMapping(1000)}
			}},
			"host-pid": {"host's IPC or PID", func(o *v1.NamespaceOption) {
				o.Pid, o.UsernsOptions = v1.NamespaceMode_NODE, &v1.UserNamespace{Uids: idMapping(1000), Gids: idMapping(1000)}
			}},
		} {
			config := r.n.Pod(unique(r.T)+name, func(p *v1.PodSandboxConfig) {
				c.edit(p.Linux.SecurityContext.NamespaceOptions)
			})
			_, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
			r.wantCode(err, codes.InvalidArgument, c.want)
		}
		p := r.pod(inUserns)
		config := busybox("user", "true", p.like(), security(func(s *v1.LinuxContainerSecurityContext) {
			s.RunAsUser = &v1.Int64Value{Value: 70000}
		}))
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
		r.wantCode(err, codes.InvalidArgument, "user 70000")
		p.wantNoContainer("user")
	})
}

func recursive(m *v1.Mount) { m.RecursiveReadOnly = true }

// TestRecursiveReadOnly has a volume with another file system in it, two deep.
func TestRecursiveReadOnly(t *testing.T) {
	each(t, func(r rig) {
		dir, p := r.volume()+"/real", r.pod()
		r.mountInside(dir+"/sub", 0)
		r.ok(r.n.Space.Do(func() error { return os.Mkdir(dir+"/sub/deeper", 0o755) }))
		r.mountInside(dir+"/sub/deeper", 0)
		const script = "for d in . sub sub/deeper; do touch /data/$d/x 2>/dev/null && echo written || echo refused; done"
		r.wantText("read-only", p.output(busybox("ro", script, mount(dir, "/data", readOnly))), "refused\nwritten\nwritten")
		c := p.start(busybox("rro", script, mount(dir, "/data", readOnly, recursive)))
		st := c.finish()
		r.wantText("recursive", c.text("stdout"), "refused\nrefused\nrefused")
		if m := st.Mounts[0]; !m.RecursiveReadOnly || !m.Readonly || m.HostPath != dir {
			r.Errorf("the status shows %v", m)
		}
		p.start(busybox("holds", "sleep 1000", mount(dir, "/data", readOnly, recursive)))
		r.unmountInside(dir + "/sub/deeper")
		if err := r.n.Space.Do(func() error { return os.Remove(dir + "/sub/deeper") }); err != nil {
			r.Errorf("a container's mounts keep the node from its own volume: %v", err)
		}
		for name, edit := range map[string]func(*v1.Mount){
			"writable": func(m *v1.Mount) { m.RecursiveReadOnly = true },
			"follows": func(m *v1.Mount) {
				m.Readonly, m.RecursiveReadOnly, m.Propagation = true, true, v1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
			},
			"both-ways": func(m *v1.Mount) {
				m.Readonly, m.RecursiveReadOnly, m.Propagation = true, true, v1.MountPropagation_PROPAGATION_BIDIRECTIONAL
			},
		} {
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox(name, "true", mount(dir, "/data", edit)), p.config)
			r.wantCode(err, codes.InvalidArgument, "recursive_read_only")
			p.wantNoContainer(name)
		}
	})
}

// TestUsernsLeavesNothing looks for the mounts of a pod with a user namespace: those that a container has no more need
// of once it is made, and all when the pod is gone.
func TestUsernsLeavesNothing(t *testing.T) {
	each(t, func(r rig) {
		dir, p := r.volume(), r.pod(inUserns)
		c := p.start(
			busybox("c", "sleep 1000", p.like(), mount(dir+"/real", "/data", mapped),
				mount(dir+"/file", "/etc/given", mapped, readOnly, recursive)))
		run := filepath.Join(r.n.State, "pods", p.id)
		for _, at := range []string{run + "/ns/user", run + "/c/" + c.cid + "/rootfs"} {
			if !r.isMounted(at) {
				r.Errorf("%s is not mounted", at)
			}
		}
		if r.isMounted(run + "/c/" + c.cid + "/mounts/0") {
			r.Error("what the container was made with is still mounted on the node")
		}
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
		r.eventually("the container's mounts are gone", func() bool {
			return !r.isMounted(run + "/c/" + c.cid + "/rootfs")
		})
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		r.ok(r.n.Space.Do(func() error {
			table, err := os.ReadFile("/proc/thread-self/mountinfo")
			if strings.Contains(string(table), run) {
				r.Errorf("mounts are left below %s", run)
			}
			return err
		}))
	})
}

// TestHandlerFeatures waits for what the daemon finds out about its runtimes once somebody asks.
func TestHandlerFeatures(t *testing.T) {
	each(t, func(r rig) {
		r.eventually("user namespaces are reported", func() bool {
			resp, err := r.n.Runtime.Status(ctx(), false)
			r.ok(err)
			h := resp.RuntimeHandlers[0]
			if h.Name != "" || !h.Features.GetRecursiveReadOnlyMounts() {
				r.Fatalf("the default handler is reported as %v", h)
			}
			if f := resp.Features; !f.GetSupplementalGroupsPolicy() || !f.GetMountOptions() {
				r.Fatalf("the runtime's features are %v", f)
			}
			return h.Features.GetUserNamespaces() && resp.Features.GetUserNamespacesHostNetwork()
		})
	})
}
