package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

func namespaces(f func(*v1.NamespaceOption)) func(*v1.PodSandboxConfig) {
	return func(c *v1.PodSandboxConfig) { f(c.Linux.SecurityContext.NamespaceOptions) }
}

// sharedPID gives the pod one PID namespace; hostNetwork, hostPID and hostIPC give it the machine's.
var (
	sharedPID   = namespaces(func(o *v1.NamespaceOption) { o.Pid = v1.NamespaceMode_POD })
	hostNetwork = func(c *v1.PodSandboxConfig) { // with the machine's host name, as the kubelet asks for it
		c.Hostname, c.Linux.SecurityContext.NamespaceOptions.Network = "", v1.NamespaceMode_NODE
	}
	hostPID = namespaces(func(o *v1.NamespaceOption) { o.Pid = v1.NamespaceMode_NODE })
	hostIPC = namespaces(func(o *v1.NamespaceOption) { o.Ipc = v1.NamespaceMode_NODE })
)

// as gives a container the namespaces of its pod, as the kubelet does.
func (p *pod) as(c *v1.ContainerConfig) *v1.ContainerConfig {
	c.Linux.SecurityContext.NamespaceOptions = p.config.Linux.SecurityContext.NamespaceOptions
	return c
}

func TestPodLife(t *testing.T) {
	each(t, func(r rig) {
		began := time.Now()
		p := r.pod(func(c *v1.PodSandboxConfig) {
			c.Labels["a"], c.Annotations = "b", map[string]string{"c/d": "e\nf", "empty": ""}
			c.Metadata.Attempt = 2
		})
		st := p.status()
		m := p.config.Metadata
		if st.Id != p.id || st.State != v1.PodSandboxState_SANDBOX_READY || st.CreatedAt < began.UnixNano() ||
			st.Metadata.Name != m.Name || st.Metadata.Namespace != m.Namespace || st.Metadata.Uid != m.Uid ||
			st.Metadata.Attempt != 2 {
			r.Errorf("status %v", st)
		}
		if fmt.Sprint(st.Labels) != fmt.Sprint(p.config.Labels) ||
			fmt.Sprint(st.Annotations) != fmt.Sprint(p.config.Annotations) {
			r.Errorf("labels %v, annotations %v", st.Labels, st.Annotations)
		}
		if got := st.GetLinux().GetNamespaces().GetOptions(); got.GetPid() != v1.NamespaceMode_CONTAINER ||
			got.GetNetwork() != v1.NamespaceMode_POD {
			r.Errorf("namespaces %v", got)
		}
		if !strings.HasPrefix(st.GetNetwork().GetIp(), "10.88.") {
			r.Errorf("network %v", st.Network)
		}
		c := p.start(busybox("main", "sleep 100"))
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		if st := p.status(); st.State != v1.PodSandboxState_SANDBOX_NOTREADY {
			r.Errorf("after stop: %s", st.State)
		} else if n := st.GetNetwork(); n == nil || n.GetIp() != "" || len(n.GetAdditionalIps()) != 0 {
			r.Errorf("after stop it has the network %v", n)
		}
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_EXITED {
			r.Errorf("after its pod stopped, the container is %s", st.State)
		}
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), p.id))
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), p.id))
	})
}

func TestVerboseStatus(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("main", "sleep 100"))
		sandbox, err := r.n.Runtime.PodSandboxStatus(ctx(), p.id, true)
		r.ok(err)
		r.wantJSON(sandbox.Info)
		container, err := r.n.Runtime.ContainerStatus(ctx(), c.cid, true)
		r.ok(err)
		r.wantJSON(container.Info)
	})
}

func TestListPods(t *testing.T) {
	each(t, func(r rig) {
		mark := unique(r.T) + r.n.Instance
		label := func(value string) func(*v1.PodSandboxConfig) {
			return func(c *v1.PodSandboxConfig) { c.Labels["mark"], c.Labels["tier"] = mark, value }
		}
		one, two := r.pod(label("a")), r.pod(label("b"), func(c *v1.PodSandboxConfig) { c.Metadata.Name += "2" })
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), two.id))
		mine := func(more map[string]string) *v1.PodSandboxFilter {
			f := &v1.PodSandboxFilter{LabelSelector: map[string]string{"mark": mark}}
			for k, v := range more {
				f.LabelSelector[k] = v
			}
			return f
		}
		ready, notReady := mine(nil), mine(nil)
		ready.State = &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_READY}
		notReady.State = &v1.PodSandboxStateValue{State: v1.PodSandboxState_SANDBOX_NOTREADY}
		for _, c := range []struct {
			name   string
			filter *v1.PodSandboxFilter
			want   string
		}{
			{"mark", mine(nil), one.id + two.id}, {"label", mine(map[string]string{"tier": "b"}), two.id},
			{"ready", ready, one.id}, {"not ready", notReady, two.id},
			{"id", &v1.PodSandboxFilter{Id: one.id}, one.id}, {"beginning of it", &v1.PodSandboxFilter{Id: one.id[:20]}, one.id},
			{"unknown", &v1.PodSandboxFilter{Id: strings.Repeat("0", 64)}, ""},
		} {
			got, err := r.n.Runtime.ListPodSandbox(ctx(), c.filter)
			r.ok(err)
			if len(got)*64 != len(c.want) {
				r.Errorf("%s: %d pods", c.name, len(got))
			}
			for _, p := range got {
				if !strings.Contains(c.want, p.Id) || p.Metadata == nil || p.CreatedAt == 0 {
					r.Errorf("%s: unexpected or incomplete: %v", c.name, p)
				}
			}
		}
	})
}

// namespacesOf says which namespaces a container is in. The container runs on: an inode of one that is gone may be used
// again.
func (p *pod) namespacesOf(name string) map[string]string {
	p.Helper()
	c := p.start(p.as(busybox(name, "sleep 1000")))
	found := map[string]string{}
	for _, kind := range []string{"net", "ipc", "uts", "pid"} {
		found[kind] = strings.TrimSpace(c.exec("readlink", "/proc/self/ns/"+kind))
	}
	return found
}

// TestNamespaces checks which namespaces two containers of a pod share with each other and with the machine.
func TestNamespaces(t *testing.T) {
	machine := func(kind string) string {
		ns, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	each(t, func(r rig) {
		for _, c := range []struct {
			name                 string
			edit                 func(*v1.PodSandboxConfig)
			shared, own, ofHosts string
		}{
			{"usual", func(*v1.PodSandboxConfig) {}, "net ipc uts", "pid", ""},
			{"shared-pid", sharedPID, "net ipc uts pid", "", ""},
			{"host-network", hostNetwork, "net ipc", "pid", "net"},
			{"host-pid", hostPID, "net ipc uts pid", "", "pid"},
			{"host-ipc", hostIPC, "net ipc uts", "pid", "ipc"},
		} {
			r.sub(c.name, func(r rig) {
				p := r.pod(c.edit)
				a, b := p.namespacesOf("a"), p.namespacesOf("b")
				for _, kind := range strings.Fields(c.shared) {
					if a[kind] != b[kind] {
						r.Errorf("%s is %s and %s, should be shared", kind, a[kind], b[kind])
					}
				}
				for _, kind := range strings.Fields(c.own) {
					if a[kind] == b[kind] {
						r.Errorf("%s is shared", kind)
					}
				}
				for _, kind := range []string{"net", "ipc", "pid"} {
					host := machine(kind)
					if kind == "net" {
						host = r.n.Space.NetNS()
					}
					if want := strings.Contains(c.ofHosts, kind); (a[kind] == host) != want {
						r.Errorf("%s is the machine's: %v, wanted %v", kind, !want, want)
					}
				}
			})
		}
	})
}

func TestSharedPIDHasAnInit(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(sharedPID)
		a := p.start(p.as(busybox("a", "echo up; sleep 7654")))
		a.logged("up") // until then its process is its runtime's
		b := p.start(p.as(busybox("b", "sleep 100")))
		if out := b.exec("ps"); !strings.Contains(out, "sleep 7654") {
			r.Errorf("b does not see a: %s", out)
		}
		b.exec("sh", "-c", "sh -c 'true & exec true'") // leaves an orphan for the init to reap
		r.eventually("the orphan is reaped", func() bool { return !strings.Contains(b.exec("ps", "-o", "stat,args"), "Z") })
		r.ok(r.n.Runtime.StopContainer(ctx(), a.cid, 0))
		if st := b.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("when a stopped, b became %s", st.State)
		}
	})
}

func TestNoPauseProcess(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		// What helped to make it may be about to end.
		r.eventually("a pod without containers runs nothing but its monitor", func() bool {
			others := 0
			for _, pid := range processesIn(p.id, "") {
				cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if !strings.HasPrefix(string(cmdline), "berth-monitor\x00") {
					others++
				}
			}
			return others == 0
		})
	})
}

func TestPodFiles(t *testing.T) {
	each(t, func(r rig) {
		dns := &v1.DNSConfig{Servers: []string{"10.0.0.10", "fd00::10"}, Searches: []string{"a.local", "b.local"},
			Options: []string{"ndots:5", "edns0"}}
		node := r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-node"; c.DnsConfig = nil })
		empty := r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-empty"; c.DnsConfig = &v1.DNSConfig{} })
		r.wantText("an empty DNSConfig says nothing", empty.output(busybox("resolv", "cat /etc/resolv.conf; echo end")),
			strings.TrimSpace(node.output(busybox("resolv", "cat /etc/resolv.conf; echo end"))))
		p := r.pod(func(c *v1.PodSandboxConfig) { c.DnsConfig, c.Hostname = dns, "files-host" })
		for _, c := range []struct{ name, script, want string }{
			{"resolv", "cat /etc/resolv.conf", "search a.local b.local\nnameserver 10.0.0.10\nnameserver fd00::10\noptions " +
				"ndots:5 edns0"},
			{"hostname", "hostname", "files-host"},
			{"etc-hostname", "cat /etc/hostname", "files-host"},
			{"hosts", "grep -c localhost /etc/hosts | grep -qv '^0$' && echo found", "found"},
		} {
			r.wantText(c.name, p.output(busybox(c.name, c.script)), c.want)
		}
		host := r.pod(hostNetwork, func(c *v1.PodSandboxConfig) { c.Metadata.Name = "host-files" })
		name, err := os.Hostname()
		r.ok(err)
		r.wantText("hostname of a host network pod", host.output(host.as(busybox("main", "hostname; echo $HOSTNAME; cat "+
			"/etc/hostname"))),
			name+"\n"+name+"\n"+name)
		unnamed := r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name, c.Hostname = "unnamed-host", "" })
		r.wantText("hostname of a pod that asks for none", unnamed.output(busybox("main", "hostname; echo $HOSTNAME; cat "+
			"/etc/hostname")),
			"unnamed-host\nunnamed-host\nunnamed-host")
	})
}

func TestSharedMemory(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		writer := p.start(busybox("writer", "echo shared > /dev/shm/note; sleep 100"))
		r.eventually("the note is there", func() bool {
			out, _, err := r.n.Runtime.ExecSync(ctx(), writer.cid, []string{"cat", "/dev/shm/note"}, timeouts.For(5*time.Second))
			return err == nil && len(out) > 0
		})
		r.wantText("/dev/shm in the same pod", p.output(busybox("reader", "cat /dev/shm/note")), "shared")
		r.wantText("/dev/shm in another pod", r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "2" }).
			output(busybox("reader", "ls /dev/shm")), "")
		r.wantText("size", p.output(busybox("size", "df -m /dev/shm | tail -1 | awk '{print $2}'")), "64")
	})
}

func TestSysctls(t *testing.T) {
	with := func(pairs ...string) func(*v1.PodSandboxConfig) {
		return func(c *v1.PodSandboxConfig) {
			c.Linux.Sysctls = map[string]string{}
			for _, p := range pairs {
				key, value, _ := strings.Cut(p, "=")
				c.Linux.Sysctls[key] = value
			}
		}
	}
	each(t, func(r rig) {
		p := r.pod(with("net.ipv4.ip_unprivileged_port_start=80", "kernel.shm_rmid_forced=1", "kernel.msgmax=9999"))
		for _, path := range []string{"net/ipv4/ip_unprivileged_port_start 80", "kernel/shm_rmid_forced 1",
			"kernel/msgmax 9999"} {
			file, want, _ := strings.Cut(path, " ")
			r.wantText(file, p.output(busybox(strings.ReplaceAll(file, "/", "-"), "cat /proc/sys/"+file)), want)
		}
		for name, edits := range map[string][]func(*v1.PodSandboxConfig){
			"vm.swappiness":                {with("vm.swappiness=1")},
			"kernel.nonesuch":              {with("kernel.nonesuch=1")},
			"net.ipv4.ip_forward":          {with("net.ipv4.ip_forward=1"), hostNetwork},
			"kernel.msgmax":                {with("kernel.msgmax=9999"), hostIPC},
			"net.ipv4/../../vm/swappiness": {with("net.ipv4/../../vm/swappiness=1")},
		} {
			_, err := r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod("badsysctl", edits...), "")
			r.wantCode(err, codes.InvalidArgument, name)
		}
	})
}

// unprivileged is a container of a user that is not root and has no powers.
var unprivileged = both(caps(nil, []string{"ALL"}), security(func(s *v1.LinuxContainerSecurityContext) {
	s.RunAsUser, s.RunAsGroup, s.NoNewPrivs = &v1.Int64Value{Value: 1234}, &v1.Int64Value{Value: 1234}, true
}))

// TestUnprivilegedNetwork has a process without powers listen on port 80 and send an ICMP echo request, in pods that
// have a network of their own.
func TestUnprivilegedNetwork(t *testing.T) {
	const read = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/ipv4/ping_group_range"
	each(t, func(r rig) {
		for name, edits := range map[string][]func(*v1.PodSandboxConfig){"plain": nil, "userns": {inUserns}} {
			r.sub(name, func(r rig) {
				p := r.pod(edits...)
				p.start(p.as(webapp("web", "serve", unprivileged, port80))).logged("listening on port 80")
				r.wantText("ping", p.output(p.as(webapp("ping", "ping "+p.ip(), unprivileged))), "reply")
			})
		}
		r.sub("own sysctls win", func(r rig) {
			p := r.pod(func(c *v1.PodSandboxConfig) {
				c.Linux.Sysctls = map[string]string{"net/ipv4/ip_unprivileged_port_start": "1000",
					"net.ipv4.ping_group_range": "7 8"}
			})
			r.wantText("sysctls", strings.Join(strings.Fields(p.output(busybox("main", read))), " "), "1000 7 8")
			if c := p.start(webapp("web", "serve", unprivileged, port80)); c.finish().ExitCode == 0 {
				r.Error("a process without powers listens on port 80")
			}
		})
		r.sub("host network", func(r rig) {
			var host string
			r.ok(r.n.Space.Do(func() error {
				for _, f := range []string{"ip_unprivileged_port_start", "ping_group_range"} {
					data, err := os.ReadFile("/proc/sys/net/ipv4/" + f)
					if err != nil {
						return err
					}
					host += string(data)
				}
				return nil
			}))
			p := r.pod(hostNetwork)
			r.wantText("sysctls", p.output(p.as(busybox("main", read))), host)
			if strings.HasPrefix(host, "0\n") {
				r.Errorf("the node's are %q", host)
			}
		})
	})
}

func port80(c *v1.ContainerConfig) {
	c.Envs = append(c.Envs, &v1.KeyValue{Key: "PORT", Value: []byte("80")})
}

// TestUnprivilegedNetworkOff takes both away again by the configuration, and gives them back by a reload.
func TestUnprivilegedNetworkOff(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			r := ownNode(t, node.Options{Runtime: runtime, Tables: "[pods]\nunprivileged_ports = false\nunprivileged_icmp = " +
				"false\n"})
			r.pull("busybox:latest")
			for _, want := range []string{"1024 1 0", "0 0 2147483647"} {
				p := r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += want[:1] })
				r.wantText("sysctls", strings.Join(strings.Fields(p.output(busybox("main",
					"cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/ipv4/ping_group_range"))), " "), want)
				r.configure("[pods]\nunprivileged_ports = true\nunprivileged_icmp = true\n")
				out, err := r.reload()
				if err != nil {
					r.Fatalf("%v: %s", err, out)
				}
			}
		})
	}
}

func TestCgroupParent(t *testing.T) {
	each(t, func(r rig) {
		parent := node.GroupsOf(r.n).KubePod("pod-x")
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Linux.CgroupParent = parent })
		c := p.start(p.as(busybox("main", "sleep 100")))
		r.eventually("it runs in "+parent, func() bool {
			return countProcesses("sleep", parent+"/"+node.GroupsOf(r.n).Container(c.cid)) == 1
		})
	})
}

// TestSamePodTwice checks that a pod asked for by several callers at once is made once.
func TestSamePodTwice(t *testing.T) {
	each(t, func(r rig) {
		config := r.n.Pod(unique(r.T))
		ids := make(chan string, 4)
		for range cap(ids) {
			go func() {
				id, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
				if err != nil {
					r.Error(err)
				}
				ids <- id
			}()
		}
		first := <-ids
		for range cap(ids) - 1 {
			if id := <-ids; id != first {
				r.Errorf("the same request gave %s and %s", first, id)
			}
		}
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), first))
		r.ok(r.n.Runtime.RemovePodSandbox(ctx(), first))
	})
}

// TestManyPods starts pods side by side and removes them side by side.
func TestManyPods(t *testing.T) {
	each(t, func(r rig) {
		const many = 12
		done := make(chan error, many)
		for i := range many {
			go func() { done <- onePod(r.n, fmt.Sprintf("many-%d", i)) }()
		}
		for range many {
			if err := <-done; err != nil {
				r.Error(err)
			}
		}
	})
}

// onePod runs a pod with a container from beginning to end.
func onePod(n *node.Node, name string) error {
	config := n.Pod(name)
	id, err := n.Runtime.RunPodSandbox(ctx(), config, "")
	if err != nil {
		return err
	}
	cid, err := n.Runtime.CreateContainer(ctx(), id, busybox("main", "sleep 100"), config)
	if err == nil {
		err = n.Runtime.StartContainer(ctx(), cid)
	}
	if err == nil {
		_, _, err = n.Runtime.ExecSync(ctx(), cid, []string{"true"}, timeouts.For(time.Minute))
	}
	if err == nil {
		err = n.Runtime.StopPodSandbox(ctx(), id)
	}
	if e := n.Runtime.RemovePodSandbox(ctx(), id); err == nil {
		err = e
	}
	return err
}
