package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/timeouts"
)

// ports gives a pod port mappings.
func ports(list ...*v1.PortMapping) func(*v1.PodSandboxConfig) {
	return func(c *v1.PodSandboxConfig) { c.PortMappings = list }
}

// ask sends a datagram into the node and returns the answer, asking again until there is one.
func (r rig) ask(address, question string) (string, error) {
	r.Helper()
	conn, err := r.n.Space.DialContext(ctx(), "udp", address)
	r.ok(err)
	defer func() { _ = conn.Close() }()
	var last error
	for range 20 {
		if _, last = conn.Write([]byte(question)); last != nil {
			continue
		}
		buf := make([]byte, 1500)
		_ = conn.SetReadDeadline(time.Now().Add(timeouts.For(time.Second)))
		var n int
		if n, last = conn.Read(buf); last == nil {
			return string(buf[:n]), nil
		}
	}
	return "", last
}

func TestHostPortUDP(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(ports(&v1.PortMapping{Protocol: v1.Protocol_UDP, HostPort: 18090, ContainerPort: 8080}))
		p.start(webapp("udp", "udp")).logged("listening")
		if got, err := r.ask("10.88.0.1:18090", "a datagram"); got != "echo a datagram" {
			r.Errorf("through the host port: %q, %v", got, err)
		}
		if conn, err := r.n.Space.DialContext(ctx(), "tcp", "10.88.0.1:18090"); err == nil {
			_ = conn.Close()
			r.Error("a port mapped for UDP answers TCP")
		}
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		if got, err := r.ask("10.88.0.1:18090", "late"); err == nil {
			r.Errorf("after the pod stopped its port answers %q", got)
		}
	})
}

func TestHostPortOfOneAddress(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(ports(
			&v1.PortMapping{HostPort: 18091, ContainerPort: 8080, HostIp: "10.88.0.1"},
			&v1.PortMapping{HostPort: 18092, ContainerPort: 8080, HostIp: "10.99.99.99"},
			&v1.PortMapping{HostPort: 0, ContainerPort: 8080},
		))
		p.serving()
		if page, err := r.n.Get("http://10.88.0.1:18091/"); err != nil || !strings.Contains(page, "Hello from") {
			r.Errorf("at its address: %q, %v", page, err)
		}
		if page, err := r.n.Get("http://10.88.0.1:18092/"); err == nil {
			r.Errorf("a port of another address answers here: %q", page)
		}
		for _, bad := range []*v1.PortMapping{{HostPort: 70000, ContainerPort: 1}, {HostPort: 1, ContainerPort: -1}} {
			_, err := r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod("badport", ports(bad)), "")
			r.wantCode(err, codes.InvalidArgument, "port")
		}
	})
}

// target makes a container share the PID namespace of another, as an ephemeral container that debugs it.
func target(id string) edit {
	return func(c *v1.ContainerConfig) {
		c.Linux.SecurityContext.NamespaceOptions = &v1.NamespaceOption{Pid: v1.NamespaceMode_TARGET, TargetId: id}
	}
}

func TestTargetPID(t *testing.T) {
	each(t, func(r rig) {
		p, other := r.pod(), r.pod(func(c *v1.PodSandboxConfig) { c.Metadata.Name += "2" })
		main := p.start(busybox("main", "echo up; sleep 7654"))
		main.logged("up") // until then its process is its runtime's
		stranger := other.start(busybox("stranger", "sleep 1000"))
		debugger := p.start(busybox("debugger", "ps; exec sleep 1000", target(main.cid)))
		debugger.logged("sleep 7654")
		ns := func(c *ctr) string { return strings.TrimSpace(c.exec("readlink", "/proc/self/ns/pid")) }
		if a, b := ns(main), ns(debugger); a != b {
			r.Errorf("the debugger is in %s, its target in %s", b, a)
		}
		for name, c := range map[string]struct {
			id   string
			code codes.Code
		}{
			"nobody": {strings.Repeat("0", 64), codes.NotFound}, "stranger": {stranger.cid, codes.NotFound},
			"nameless": {"", codes.NotFound},
		} {
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("bad-"+name, "true", target(c.id)), p.config)
			r.wantCode(err, c.code, "target")
			p.wantNoContainer("bad-" + name)
		}
		r.ok(r.n.Runtime.StopContainer(ctx(), main.cid, 0))
		r.eventually("with its target the debugger has ended", func() bool {
			return debugger.status().State == v1.ContainerState_CONTAINER_EXITED
		})
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("late", "true", target(main.cid)), p.config)
		r.wantCode(err, codes.FailedPrecondition, "target", "exited")
	})
}

// TestOneImageID checks that an image has one id wherever it shows, and that what a client said of it comes back.
func TestOneImageID(t *testing.T) {
	each(t, func(r rig) {
		name := ref("busybox:latest")
		id, err := r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: name, UserSpecifiedImage: "busybox"}, nil, nil)
		r.ok(err)
		image, err := r.n.Images.ImageStatus(ctx(), &v1.ImageSpec{Image: id}, false)
		r.ok(err)
		p := r.pod()
		config := busybox("main", "sleep 1000")
		config.Image = &v1.ImageSpec{Image: id, UserSpecifiedImage: "busybox", Annotations: map[string]string{"a": "b"}}
		config.Annotations, config.Labels = map[string]string{"c/d": "e\nf", "empty": ""}, map[string]string{"l": "m"}
		config.Metadata.Attempt = 3
		c := p.create(config)
		st := c.status()
		for what, got := range map[string]string{
			"Image.id": image.GetImage().GetId(), "ContainerStatus.image_id": st.ImageId,
		} {
			if got != id {
				r.Errorf("%s is %s, PullImage answered %s", what, got, id)
			}
		}
		all, err := r.n.Runtime.ListContainers(ctx(), &v1.ContainerFilter{Id: c.cid})
		r.ok(err)
		if len(all) != 1 || all[0].ImageId != id || all[0].Metadata.Attempt != 3 {
			r.Errorf("in the list: %v", all)
		}
		if st.Image.UserSpecifiedImage != "busybox" || st.Image.Annotations["a"] != "b" || st.Image.Image == "" {
			r.Errorf("the status shows the image %v", st.Image)
		}
		if fmt.Sprint(st.Annotations) != fmt.Sprint(config.Annotations) ||
			fmt.Sprint(st.Labels) != fmt.Sprint(config.Labels) || st.Metadata.Attempt != 3 {
			r.Errorf("the status shows %v, %v, %v", st.Annotations, st.Labels, st.Metadata)
		}
	})
}

func TestPullForAHandler(t *testing.T) {
	each(t, func(r rig) {
		st, err := r.n.Runtime.Status(ctx(), false)
		r.ok(err)
		if len(st.RuntimeHandlers) < 2 || st.RuntimeHandlers[0].Name != "" {
			r.Errorf("the handlers are %v, wanted the default's first", st.RuntimeHandlers)
		}
		for _, h := range st.RuntimeHandlers {
			_, err := r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: ref("busybox:latest"), RuntimeHandler: h.Name}, nil, nil)
			r.ok(err)
		}
		_, err = r.n.Images.PullImage(ctx(), &v1.ImageSpec{Image: ref("busybox:latest"), RuntimeHandler: "nonesuch"}, nil,
			nil)
		r.wantCode(err, codes.NotFound, "nonesuch")
		_, err = r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod("nonesuch"), "nonesuch")
		r.wantCode(err, codes.NotFound, "nonesuch")
	})
}

// TestOldProfileFields checks the profile fields of old clients, and ambient capabilities.
func TestOldProfileFields(t *testing.T) {
	const mode = "grep Seccomp: /proc/self/status | tr -dc 0-9"
	each(t, func(r rig) {
		p := r.pod()
		for _, c := range []struct {
			name, script, want string
			edit               edit
		}{
			{"default", mode, "2", security(func(s *v1.LinuxContainerSecurityContext) {
				//lint:ignore SA1019 old clients send it
				s.Seccomp, s.SeccompProfilePath = nil, "runtime/default"
			})},
			{"unconfined", mode, "0", security(func(s *v1.LinuxContainerSecurityContext) {
				//lint:ignore SA1019 old clients send it
				s.Seccomp, s.SeccompProfilePath = nil, "unconfined"
			})},
			{"nothing", mode, "0", security(func(s *v1.LinuxContainerSecurityContext) { s.Seccomp = nil })},
			{"ambient", "grep CapAmb /proc/self/status | tr -d '\\t'", "CapAmb:0000000000000400",
				security(func(s *v1.LinuxContainerSecurityContext) {
					s.RunAsUser = &v1.Int64Value{Value: 1000}
					s.Capabilities = &v1.Capability{AddAmbientCapabilities: []string{"NET_BIND_SERVICE"}}
				})},
		} {
			r.wantText(c.name, p.output(busybox(c.name, c.script, c.edit)), c.want)
		}
	})
}

// TestInitOfAPod checks who the init of a pod with a shared PID namespace runs as.
func TestInitOfAPod(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(sharedPID, func(c *v1.PodSandboxConfig) {
			c.Linux.SecurityContext.RunAsUser, c.Linux.SecurityContext.RunAsGroup = &v1.Int64Value{Value: 1234},
				&v1.Int64Value{Value: 5678}
		})
		r.wantText("the user of the init", p.output(p.as(busybox("look", "stat -c %u:%g /proc/1"))), "1234:5678")
		_, err := r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod("grouponly", func(c *v1.PodSandboxConfig) {
			c.Linux.SecurityContext.RunAsGroup = &v1.Int64Value{Value: 5678}
		}), "")
		r.wantCode(err, codes.InvalidArgument, "run_as_group")
	})
}

// TestSizeOfAPod checks that what a pod is said to need is kept: runtimes that make a machine for it read it.
func TestSizeOfAPod(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod(func(c *v1.PodSandboxConfig) {
			c.Linux.Overhead = &v1.LinuxContainerResources{MemoryLimitInBytes: 7654321}
			c.Linux.Resources = &v1.LinuxContainerResources{CpuShares: 345}
		})
		resp, err := r.n.Runtime.PodSandboxStatus(ctx(), p.id, true)
		r.ok(err)
		if info := resp.Info["info"]; !strings.Contains(info, "7654321") || !strings.Contains(info, "345") {
			r.Errorf("a verbose status does not show overhead and resources: %s", info)
		}
	})
}

// TestNoSwapUnlessAsked checks that a container with a memory limit gets no swap, and otherwise what was asked for.
func TestNoSwapUnlessAsked(t *testing.T) {
	each(t, func(r rig) {
		if node.GroupsOf(r.n).Systemd {
			r.Skip("cgroup2_test.go reads these files of cgroup v2")
		}
		p := r.pod()
		limits := func(memory, swap int64) edit {
			return func(c *v1.ContainerConfig) {
				c.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: memory, MemorySwapLimitInBytes: swap,
					CpusetMems: "0"}
			}
		}
		none := p.start(busybox("none", "sleep 1000", limits(64<<20, 0)))
		some := p.start(busybox("some", "sleep 1000", limits(64<<20, 96<<20)))
		for c, want := range map[*ctr][2]string{none: {"67108864", "0"}, some: {"100663296", "33554432"}} {
			got := c.controlFile("memory", "memory.memsw.limit_in_bytes", "memory.swap.max")
			if got != want[0] && got != want[1] {
				r.Errorf("swap is limited to %s, wanted %v", got, want)
			}
			if got := c.controlFile("cpuset", "cpuset.mems", "cpuset.mems"); got != "0" {
				r.Errorf("cpuset.mems is %q", got)
			}
		}
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("bad", "true", limits(64<<20, 1<<20)), p.config)
		r.wantCode(err, codes.InvalidArgument, "memory_swap_limit_in_bytes")
	})
}
