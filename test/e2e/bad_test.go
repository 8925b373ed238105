package e2e

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

const noSuchID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestUnknownIDs(t *testing.T) {
	each(t, func(r rig) {
		s := r.n.Runtime
		for name, call := range map[string]func(id string) error{
			"PodSandboxStatus":   func(id string) error { _, err := s.PodSandboxStatus(ctx(), id, false); return err },
			"ContainerStatus":    func(id string) error { _, err := s.ContainerStatus(ctx(), id, false); return err },
			"StartContainer":     func(id string) error { return s.StartContainer(ctx(), id) },
			"ReopenContainerLog": func(id string) error { return s.ReopenContainerLog(ctx(), id) },
			"CreateContainer": func(id string) error {
				_, err := s.CreateContainer(ctx(), id, busybox("main", "true"), r.n.Pod("absent"))
				return err
			},
		} {
			r.sub(name, func(r rig) { r.wantCode(call(noSuchID), codes.NotFound, noSuchID[:12]) })
		}
		for name, call := range map[string]func(id string) error{
			"StopPodSandbox":   func(id string) error { return s.StopPodSandbox(ctx(), id) },
			"RemovePodSandbox": func(id string) error { return s.RemovePodSandbox(ctx(), id) },
			"StopContainer":    func(id string) error { return s.StopContainer(ctx(), id, 1) },
			"RemoveContainer":  func(id string) error { return s.RemoveContainer(ctx(), id) },
		} {
			r.sub(name, func(r rig) { r.wantCode(call(noSuchID), codes.OK) })
		}
		for _, odd := range []string{"", "../../etc", "ABC", strings.Repeat("a", 5000)} {
			if _, err := s.ContainerStatus(ctx(), odd, false); err == nil {
				r.Errorf("the status of container %.20q was given", odd)
			}
			if err := s.RemovePodSandbox(ctx(), odd); err != nil {
				if c := codeOf(err); c != codes.InvalidArgument && c != codes.NotFound {
					r.Errorf("removing pod %.20q gave %v", odd, err)
				}
			}
		}
	})
}

func TestBadPods(t *testing.T) {
	each(t, func(r rig) {
		bad := unique(r.T)
		for _, c := range []struct {
			name, handler string
			edit          func(*v1.PodSandboxConfig)
			code          codes.Code
			words         []string
		}{
			{"handler", "nonesuch", func(*v1.PodSandboxConfig) {}, codes.NotFound, []string{"nonesuch"}},
			{"no metadata", "", func(c *v1.PodSandboxConfig) { c.Metadata = nil }, codes.InvalidArgument, []string{"metadata"}},
			{"no name", "", func(c *v1.PodSandboxConfig) { c.Metadata.Name = "" }, codes.InvalidArgument, []string{"name"}},
			{"no uid", "", func(c *v1.PodSandboxConfig) { c.Metadata.Uid = "" }, codes.InvalidArgument, []string{"uid"}},
			{"relative log directory", "", func(c *v1.PodSandboxConfig) {
				c.LogDirectory = "logs"
			}, codes.InvalidArgument, []string{"log"}},
			{"hostname with the node's network", "", func(c *v1.PodSandboxConfig) { hostNetwork(c); c.Hostname = "custom" },
				codes.InvalidArgument, []string{"custom", "hostname empty"}},
			{"long hostname", "", func(c *v1.PodSandboxConfig) {
				c.Hostname = strings.Repeat("h", 65)
			}, codes.InvalidArgument, []string{"hostname"}},
			{"line in the hostname", "", func(c *v1.PodSandboxConfig) {
				c.Hostname = "a\n10.0.0.1 evil"
			}, codes.InvalidArgument, []string{"hostname", "control character"}},
			{"NUL in a name server", "", func(c *v1.PodSandboxConfig) {
				c.DnsConfig = &v1.DNSConfig{Servers: []string{"10.0.0.1\x00"}}
			}, codes.InvalidArgument, []string{"dns_config.servers"}},
			{"line in a search domain", "", func(c *v1.PodSandboxConfig) {
				c.DnsConfig = &v1.DNSConfig{Searches: []string{"a", "b\nnameserver 10.0.0.1"}}
			}, codes.InvalidArgument, []string{"dns_config.searches"}},
			{"blank in an option", "", func(c *v1.PodSandboxConfig) {
				c.DnsConfig = &v1.DNSConfig{Options: []string{"ndots:2 rotate"}}
			}, codes.InvalidArgument, []string{"dns_config.options"}},
			{"unknown network", "", func(c *v1.PodSandboxConfig) {
				c.Linux.SecurityContext.NamespaceOptions = &v1.NamespaceOption{Network: 9}
			}, codes.InvalidArgument, []string{"network", "9"}},
			{"cgroup parent", "", func(c *v1.PodSandboxConfig) {
				c.Linux.CgroupParent = "/../../up"
			}, codes.InvalidArgument, []string{"cgroup"}},
			{"host port", "", func(c *v1.PodSandboxConfig) {
				c.PortMappings = []*v1.PortMapping{{HostPort: 99999, ContainerPort: 80}}
			}, codes.InvalidArgument, []string{"99999"}},
		} {
			config := r.n.Pod("bad-pod", c.edit)
			config.Labels["bad"] = bad
			_, err := r.n.Runtime.RunPodSandbox(ctx(), config, c.handler)
			r.sub(c.name, func(r rig) { r.wantCode(err, c.code, c.words...) })
		}
		r.sub("cgroup parent of a file's name", func(r rig) {
			if node.GroupsOf(r.n).Systemd {
				return // which is well then: it becomes the name of a slice
			}
			config := r.n.Pod("bad-pod", func(c *v1.PodSandboxConfig) { c.Linux.CgroupParent = "/berth-none/cgroup.procs/x" })
			config.Labels["bad"] = bad
			_, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
			r.wantCode(err, codes.InvalidArgument, "cgroup_parent", "file")
		})
		_, err := r.n.Runtime.RunPodSandbox(ctx(), nil, "")
		r.wantCode(err, codes.InvalidArgument)
		left, err := r.n.Runtime.ListPodSandbox(ctx(),
			&v1.PodSandboxFilter{LabelSelector: map[string]string{"bad": bad}})
		r.ok(err)
		if len(left) != 0 {
			r.Errorf("pods that were refused are listed: %v", left)
		}
	})
}

func TestBadContainers(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		for _, c := range []struct {
			name  string
			edit  edit
			code  codes.Code
			words []string
		}{
			{"no metadata", func(c *v1.ContainerConfig) { c.Metadata = nil }, codes.InvalidArgument, []string{"metadata"}},
			{"no name", func(c *v1.ContainerConfig) { c.Metadata.Name = "" }, codes.InvalidArgument, []string{"name"}},
			{"no image", func(c *v1.ContainerConfig) { c.Image = nil }, codes.InvalidArgument, []string{"image"}},
			{"absent image", func(c *v1.ContainerConfig) {
				c.Image.Image = ref("never/pulled:v1")
			}, codes.NotFound, []string{"never/pulled"}},
			{"relative mount", mount("/tmp", "../data"), codes.InvalidArgument, []string{"../data"}},
			{"mount without target", mount("/tmp", ""), codes.InvalidArgument, []string{"mount"}},
			{"relative source", mount("tmp", "/data"), codes.InvalidArgument, []string{"tmp"}},
			{"NUL in a mount", mount("/tmp", "/home\x00/x"), codes.InvalidArgument, []string{"NUL"}},
			{"NUL in a directory", func(c *v1.ContainerConfig) { c.WorkingDir = "/tmp\x00x" }, codes.InvalidArgument,
				[]string{"NUL"}},
			{"NUL in a command", func(c *v1.ContainerConfig) { c.Command = []string{"sh\x00x"} }, codes.InvalidArgument,
				[]string{"NUL"}},
			{"relative directory", func(c *v1.ContainerConfig) {
				c.WorkingDir = "here"
			}, codes.InvalidArgument, []string{"here"}},
			{"bad environment", func(c *v1.ContainerConfig) { c.Envs = []*v1.KeyValue{{Key: "A=B", Value: []byte("c")}} },
				codes.InvalidArgument, []string{"A=B"}},
			{"tiny memory", func(c *v1.ContainerConfig) {
				c.Linux.Resources.MemoryLimitInBytes = -5
			}, codes.InvalidArgument, []string{"memory"}},
			{"odd cpus", func(c *v1.ContainerConfig) {
				c.Linux.Resources.CpusetCpus = "all"
			}, codes.InvalidArgument, []string{"all"}},
			{"oom score", func(c *v1.ContainerConfig) {
				c.Linux.Resources.OomScoreAdj = 5000
			}, codes.InvalidArgument, []string{"5000"}},
		} {
			name := strings.ReplaceAll(c.name, " ", "-")
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox(name, "true", c.edit), p.config)
			r.sub(c.name, func(r rig) { r.wantCode(err, c.code, c.words...) })
			p.wantNoContainer(name)
		}
	})
}

func TestNothingToRun(t *testing.T) {
	each(t, func(r rig) {
		r.pull("nocmd:latest")
		p := r.pod()
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, node.Container("bad", ref("nocmd:latest"), nil), p.config)
		r.wantCode(err, codes.InvalidArgument, "command")
	})
}

func TestWrongOrder(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("main", "sleep 1000"))
		if err := r.n.Runtime.StartContainer(ctx(), c.cid); err == nil {
			r.Log("starting a running container is OK") // the kubelet retries; both answers are right
		}
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 0))
		r.wantCode(r.n.Runtime.StartContainer(ctx(), c.cid), codes.FailedPrecondition)
		made := p.create(busybox("made", "true"))
		r.ok(r.n.Runtime.StopPodSandbox(ctx(), p.id))
		r.wantCode(r.n.Runtime.StartContainer(ctx(), made.cid), codes.FailedPrecondition)
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("late", "true"), p.config)
		r.wantCode(err, codes.FailedPrecondition)
	})
}

func TestUnimplemented(t *testing.T) {
	each(t, func(r rig) {
		err := r.n.Runtime.CheckpointContainer(ctx(),
			&v1.CheckpointContainerRequest{ContainerId: "none", Location: "/nowhere"})
		r.wantCode(err, codes.Unimplemented)
		p, q := r.pod(), r.client()
		_, err = q.CheckpointContainer(ctx(), &v1.CheckpointContainerRequest{
			ContainerId: p.id, Location: "/nowhere", Timeout: 1,
		})
		r.wantCode(err, codes.Unimplemented)
		dir := t.TempDir()
		_, err = q.CheckpointPod(ctx(), &v1.CheckpointPodRequest{
			PodSandboxId: p.id, OutputPath: dir, ContainerIds: []string{p.id}, Options: map[string]string{"a": "b"},
		})
		r.wantCode(err, codes.Unimplemented)
		// Nothing of what a RestorePodResponse or a RestoredContainer would hold is made.
		_, err = q.RestorePod(ctx(), &v1.RestorePodRequest{
			CheckpointPath: dir, Config: r.n.Pod("restored"), RuntimeHandler: "none", Options: map[string]string{"a": "b"},
			ContainerConfigs: []*v1.ContainerConfig{busybox("main", "true")},
		})
		r.wantCode(err, codes.Unimplemented)
	})
}
