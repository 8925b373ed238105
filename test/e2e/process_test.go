package e2e

import (
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// TestCommandLine checks how a request's command and args meet the image's entrypoint and cmd, as Kubernetes defines
// it.
func TestCommandLine(t *testing.T) {
	each(t, func(r rig) {
		r.pull("entry:latest") // entrypoint: echo entry; cmd: cmd
		p := r.pod()
		for _, c := range []struct {
			name          string
			command, args []string
			want          string
		}{
			{"neither", nil, nil, "entry cmd"},
			{"args", nil, []string{"args"}, "entry args"},
			{"command", []string{"echo", "command"}, nil, "command"},
			{"both", []string{"echo", "command"}, []string{"args"}, "command args"},
		} {
			config := node.Container(c.name, ref("entry:latest"), c.command)
			config.Args = c.args
			r.wantText(c.name, p.output(config), c.want)
		}
	})
}

// TestEnvironment checks what a process finds around it.
func TestEnvironment(t *testing.T) {
	env := func(pairs ...string) edit {
		return func(c *v1.ContainerConfig) {
			for _, p := range pairs {
				key, value, _ := strings.Cut(p, "=")
				c.Envs = append(c.Envs, &v1.KeyValue{Key: key, Value: []byte(value)})
			}
		}
	}
	each(t, func(r rig) {
		for _, image := range []string{"entry:latest", "noenv:latest", "workdir:latest"} {
			r.pull(image)
		}
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Hostname = "env-host" })
		for _, c := range []struct {
			name, image, script, want string
			edit                      edit
		}{
			{"image", "entry:latest", "echo $FROM $KEPT", "image image", nil},
			{"request-wins", "entry:latest", "echo $FROM $KEPT", "request image", env("FROM=request")},
			{"odd-values", "busybox:latest", `echo "$A|$B|$C"`, "x=y||a b", env("A=x=y", "B=", "C=a b")},
			// The OCI spec is JSON, which has no other bytes.
			{"not-utf8", "busybox:latest", `printf %s "$A" | od -An -tx1`, "61 ef bf bd", env("A=a\xff")},
			{"default-path", "noenv:latest", "echo $PATH",
				"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", nil},
			{"hostname", "busybox:latest", "env | grep ^HOSTNAME=", "HOSTNAME=env-host", nil},
			{"home", "busybox:latest", "echo $HOME", "/home/app", func(c *v1.ContainerConfig) {
				c.Linux.SecurityContext.RunAsUsername = "app"
			}},
			{"image-dir", "workdir:latest", "pwd", "/home/app", nil},
			{"request-dir", "workdir:latest", "pwd", "/tmp", func(c *v1.ContainerConfig) { c.WorkingDir = "/tmp" }},
			{"made-dir", "busybox:latest", "pwd", "/made/for/it", func(c *v1.ContainerConfig) { c.WorkingDir = "/made/for/it" }},
			{"root-dir", "busybox:latest", "pwd", "/", nil},
			{"term", "busybox:latest", "tty; echo $TERM", "/dev/pts/0 xterm", func(c *v1.ContainerConfig) { c.Tty = true }},
			{"no-stdin", "busybox:latest", "cat; echo end", "end", nil},
		} {
			config := node.Container(c.name, ref(c.image), []string{"/bin/sh", "-c", c.script})
			if c.edit != nil {
				c.edit(config)
			}
			r.wantText(c.name, strings.Join(strings.Fields(p.output(config)), " "), c.want)
		}
	})
}

func TestStdinStaysOpen(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "echo ready; cat; echo end", func(c *v1.ContainerConfig) {
			c.Stdin, c.StdinOnce = true, true
		}))
		c.logged("ready")
		if st := c.status(); st.State != v1.ContainerState_CONTAINER_RUNNING {
			r.Errorf("with stdin and nobody attached, the container is %s", st.State)
		}
	})
}

const whoami = `echo $(id -u) $(id -g) $(id -G | tr ' ' '\n' | sort -n)`

// TestUser checks who a process is: from the image, from the request, by number and by name.
func TestUser(t *testing.T) {
	number := func(n int64) *v1.Int64Value { return &v1.Int64Value{Value: n} }
	each(t, func(r rig) {
		for image := range variants {
			r.pull(image)
		}
		p := r.pod()
		for _, c := range []struct {
			name, image, want string // want: uid, gid, and all groups in order
			edit              edit
		}{
			{"root", "busybox", "0 0 0", nil},
			{"image-name", "user-app", "1000 1000 50 777 1000", nil},
			{"image-uid", "user-uid", "1000 1000 50 777 1000", nil},
			{"image-pair", "user-pair", "1000 50 50 777", nil},
			{"image-names", "user-names", "1000 50 50 777", nil},
			{"uid", "busybox", "1000 1000 50 777 1000", security(func(s *v1.LinuxContainerSecurityContext) {
				s.RunAsUser = number(1000)
			})},
			{"username", "busybox", "1000 1000 50 777 1000", security(func(s *v1.LinuxContainerSecurityContext) {
				s.RunAsUsername = "app"
			})},
			{"unknown-uid", "busybox", "4321 0 0", security(func(s *v1.LinuxContainerSecurityContext) {
				s.RunAsUser = number(4321)
			})},
			{"over-image", "user-app", "0 0 0", security(func(s *v1.LinuxContainerSecurityContext) { s.RunAsUser = number(0) })},
			{"uid-gid", "busybox", "4321 8765 8765", security(func(s *v1.LinuxContainerSecurityContext) {
				s.RunAsUser, s.RunAsGroup = number(4321), number(8765)
			})},
			{"extra-groups", "busybox", "4321 0 0 11 22", security(func(s *v1.LinuxContainerSecurityContext) {
				s.RunAsUser, s.SupplementalGroups = number(4321), []int64{11, 22}
			})},
			{"merged-groups", "user-app", "1000 1000 11 50 777 1000", security(func(s *v1.LinuxContainerSecurityContext) {
				s.SupplementalGroups = []int64{11}
			})},
		} {
			config := node.Container(c.name, ref(c.image+":latest"), []string{"sh", "-c", whoami})
			if c.edit != nil {
				c.edit(config)
			}
			r.wantText(c.name, unrepeated(p.output(config)), unrepeated(c.want))
		}
	})
}

// unrepeated drops the group that id prints although it is the primary one: busybox and coreutils differ in that.
func unrepeated(line string) string {
	f := strings.Fields(line)
	if len(f) < 2 {
		return line
	}
	set := map[string]bool{}
	for _, g := range f[2:] {
		set[g] = true
	}
	delete(set, f[1])
	var groups []string
	for g := range set {
		groups = append(groups, g)
	}
	sort.Strings(groups)
	return strings.Join(append(f[:2:2], groups...), " ")
}

func TestBadUser(t *testing.T) {
	each(t, func(r rig) {
		r.pull("user-ghost:latest")
		p := r.pod()
		for _, c := range []struct {
			name  string
			code  codes.Code
			words []string
			image string
			edit  edit
		}{
			{"ghost-in-image", codes.InvalidArgument, []string{"ghost"}, "user-ghost:latest", func(*v1.ContainerConfig) {}},
			{"ghost-in-request", codes.InvalidArgument, []string{"phantom"}, "busybox:latest", func(c *v1.ContainerConfig) {
				c.Linux.SecurityContext.RunAsUsername = "phantom"
			}},
			{"group-without-user", codes.InvalidArgument, []string{"group"}, "busybox:latest", func(c *v1.ContainerConfig) {
				c.Linux.SecurityContext.RunAsGroup = &v1.Int64Value{Value: 7}
			}},
		} {
			config := node.Container(c.name, ref(c.image), []string{"true"}, c.edit)
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
			r.wantCode(err, c.code, c.words...)
			p.wantNoContainer(c.name)
		}
	})
}

// wantNoContainer checks that the daemon does not list a container of that name in the pod.
func (p *pod) wantNoContainer(name string) {
	p.Helper()
	list, err := p.n.Runtime.ListContainers(ctx(), &v1.ContainerFilter{PodSandboxId: p.id})
	p.ok(err)
	for _, c := range list {
		if c.Metadata.Name == name {
			p.Errorf("container %s is listed, %s, though its creation was refused", name, c.State)
		}
	}
}

// TestDescriptors checks that nothing of the daemon, the monitor or the runtime is open in a container or an exec.
func TestTheHostsNullIsNobodys(t *testing.T) {
	each(t, func(r rig) {
		before := statNull(r)
		t.Cleanup(func() { _ = os.Chmod(os.DevNull, 0o666) }) // for the whole machine, should it fail
		host := fmt.Sprintf("%d:%d", before.Dev, before.Ino)
		const which = "for fd in 0 1 2; do [ -c /proc/self/fd/$fd ] && stat -L -c %d:%i /proc/self/fd/$fd; done; true"
		for name, e := range map[string]edit{
			"root": func(*v1.ContainerConfig) {}, "user": func(c *v1.ContainerConfig) {
				c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: 1000}
			},
		} {
			p := r.pod()
			c := p.start(busybox(name, which+"; echo up; sleep 1000", e))
			c.logged("up")
			streams := map[string]string{"exec": c.exec("sh", "-c", which), "container": c.text("stdout")}
			for what, got := range streams {
				if strings.Contains(got, host) || what == "exec" && !strings.Contains(got, ":") {
					r.Errorf("%s: the streams of the %s are %q, the host's null is %s", name, what, got, host)
				}
			}
			c.exec("sh", "-c", "chmod 600 /proc/self/fd/0; true")
			if after := statNull(r); after.Uid != before.Uid || after.Gid != before.Gid || after.Mode != before.Mode ||
				after.Ctim != before.Ctim {
				r.Errorf("%s: the host's /dev/null has been changed: %v, before %v", name, after, before)
			}
		}
	})
}

func statNull(r rig) (st unix.Stat_t) {
	r.Helper()
	r.ok(unix.Stat(os.DevNull, &st))
	return st
}

func TestDescriptors(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("main", "sleep 100"))
		const list = "ls -l /proc/self/fd | sed -n 's/.* \\([0-9]*\\) -> /\\1 /p'"
		for what, out := range map[string]string{
			"container": p.output(busybox("list", list)), "exec": c.exec("sh", "-c", list),
		} {
			for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
				number, target, _ := strings.Cut(line, " ")
				if number > "2" && !strings.HasPrefix(target, "/proc/") { // ls reads the folder
					r.Errorf("%s: descriptor %s is open: %s", what, number, target)
				}
			}
			if !strings.Contains(out, "0 ") {
				r.Errorf("%s: no descriptor was listed: %q", what, out)
			}
		}
	})
}
