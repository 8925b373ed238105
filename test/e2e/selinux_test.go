package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// enforcing, in the environment, has the tests of SELinux run on a kernel that holds containers to its policy, and does
// not only write down what they break. It is for the virtual machine, whose policy has that of the programs of the node
// only written down.
const enforcing = "BERTH_TEST_SELINUX_ENFORCING"

// enforce gives Berth's programs the label of a container engine, by which the policy knows whose pipes a container may
// use.
var enforce = sync.OnceValue(func() error {
	for _, name := range []string{"berth", "berth-monitor", "berth-unpack"} {
		path := filepath.Join(os.Getenv("BERTH_BIN"), name)
		if err := unix.Lsetxattr(path, "security.selinux", []byte("system_u:object_r:dockerd_exec_t:s0"), 0); err != nil {
			return fmt.Errorf("label %s: %w", path, err)
		}
	}
	return os.WriteFile("/sys/fs/selinux/enforce", []byte("1"), 0)
})

// needSELinux skips a test where the kernel has none.
func needSELinux(t *testing.T) {
	t.Helper()
	if !hasSELinux() {
		t.Skip("SELinux is not on in this kernel: make test-vm-all has one")
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the policy has denied, last of all:\n%s", denied())
		}
	})
	if os.Getenv(enforcing) != "" {
		if err := enforce(); err != nil {
			t.Fatal(err)
		}
	}
}

// denied is what the kernel's log says of the policy.
func denied() string {
	const readAll = 3
	log := make([]byte, 1<<20)
	n, err := unix.Klogctl(readAll, log)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(log[:n])) {
		if strings.Contains(line, "avc:  denied") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-40):], "")
}

func hasSELinux() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}

func selinux(o *v1.SELinuxOption) edit {
	return security(func(s *v1.LinuxContainerSecurityContext) { s.SelinuxOptions = o })
}

func podSELinux(o *v1.SELinuxOption) func(*v1.PodSandboxConfig) {
	return func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.SelinuxOptions = o }
}

// label is that of a process.
func (r rig) label(pid int) string {
	r.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", pid))
	r.ok(err)
	return strings.Trim(string(text), "\x00\n")
}

// fileLabel is that of a file.
func (r rig) fileLabel(path string) string {
	r.Helper()
	var buf [512]byte
	n, err := unix.Lgetxattr(path, "security.selinux", buf[:])
	if err != nil {
		r.Fatalf("the label of %s: %v", path, err)
	}
	return strings.TrimRight(string(buf[:n]), "\x00")
}

var podLabel = regexp.MustCompile(`^(\w+):(\w+):(\w+):(s0:c\d+,c\d+)$`)

// level is the fourth part of a container's label, which must have two categories.
func (c *ctr) level() string {
	c.Helper()
	label := c.label(c.pid("sleep"))
	found := podLabel.FindStringSubmatch(label)
	if found == nil || found[3] != "container_t" {
		c.Fatalf("a process has the label %s, not container_t with two categories", label)
	}
	return found[4]
}

func (c *ctr) wantFiles(label string, paths ...string) {
	c.Helper()
	for _, path := range paths {
		if got := c.fileLabel(fmt.Sprintf("/proc/%d/root%s", c.pid("sleep"), path)); got != label {
			c.Errorf("%s has the label %s, wanted %s", path, got, label)
		}
	}
}

func fileOf(level string) string { return "system_u:object_r:container_file_t:" + level }

const asleep = "echo up; exec sleep 1000"

// TestSELinuxWhereItIsOff wants the options ignored where the kernel has no SELinux, and nonsense refused there too.
func TestSELinuxWhereItIsOff(t *testing.T) {
	if hasSELinux() {
		t.Skip("this kernel has SELinux on")
	}
	each(t, func(r rig) {
		o := &v1.SELinuxOption{User: "system_u", Role: "system_r", Type: "spc_t", Level: "s0:c1,c2"}
		p := r.pod(podSELinux(o))
		dir := r.volume()
		relabelled := mount(dir+"/real", "/data", func(m *v1.Mount) { m.SelinuxRelabel = true })
		r.wantText("a container", p.output(busybox("main", "cat /data/note", selinux(o), relabelled)), "real")
		var buf [512]byte
		if n, err := unix.Lgetxattr(dir+"/real", "security.selinux", buf[:]); err == nil {
			r.Errorf("the volume was labelled %s", buf[:n])
		}
		bad := &v1.SELinuxOption{Level: "s0:nonsense"}
		_, err := r.n.Runtime.RunPodSandbox(ctx(), r.n.Pod(unique(r.T)+"-bad", podSELinux(bad)), "")
		r.wantCode(err, codes.InvalidArgument, "selinux_options", "s0:nonsense")
		_, err = r.n.Runtime.CreateContainer(ctx(), p.id, busybox("bad", "true", selinux(bad)), p.config)
		r.wantCode(err, codes.InvalidArgument, "selinux_options", "s0:nonsense")
		p.wantNoContainer("bad")
	})
}

// TestSELinuxLabels wants all containers of a pod to have its categories, in their processes and in all that they write
// to, and another pod others.
func TestSELinuxLabels(t *testing.T) {
	needSELinux(t)
	each(t, func(r rig) {
		p := r.pod()
		a, b := p.start(busybox("a", asleep)), p.start(busybox("b", asleep))
		other := r.pod().start(busybox("c", asleep))
		for _, c := range []*ctr{a, b, other} {
			c.logged("up")
		}
		level := a.level()
		if b.level() != level || other.level() == level {
			r.Errorf("two containers of a pod have %s and %s, one of another has %s", level, b.level(), other.level())
		}
		a.wantFiles(fileOf(level), "/", "/bin/sh", "/etc/passwd", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev",
			"/dev/shm")
		other.wantFiles(fileOf(other.level()), "/bin/sh", "/etc/hosts", "/dev/shm")
		own := "system_u:system_r:container_t:" + level
		r.wantText("an exec", strings.Trim(a.exec("cat", "/proc/self/attr/current"), "\x00"), own)
		r.wantText("what it may write to",
			a.exec("sh", "-c", "echo x >/new && echo x >/dev/shm/x && echo x >>/etc/hosts && cat /new /dev/shm/x && touch "+
				"/dev/null && tail -n1 /etc/hosts"), "x\nx\nx")
		r.wantText("what the other container of the pod sees of it", b.exec("cat", "/dev/shm/x"), "x")
		tty := p.start(busybox("tty", "cat /proc/self/attr/current; echo; echo seen", func(c *v1.ContainerConfig) {
			c.Tty = true
		}))
		if st := tty.finish(); st.ExitCode != 0 || !strings.Contains(tty.text(""), own) ||
			!strings.Contains(tty.text(""), "seen") {
			r.Errorf("a container with a terminal ended with %d and said %q", st.ExitCode, tty.text(""))
		}
	})
}

// TestSELinuxOptions is what becomes of what a pod and its containers ask for.
func TestSELinuxOptions(t *testing.T) {
	needSELinux(t)
	each(t, func(r rig) {
		p := r.pod(podSELinux(&v1.SELinuxOption{Level: "s0:c100,c200"}), func(c *v1.PodSandboxConfig) {
			c.Linux.SecurityContext.Privileged = true
		})
		const show = "cat /proc/self/attr/current"
		said := func(name string, edits ...edit) string {
			return strings.Trim(p.output(busybox(name, show, edits...)), "\x00\n")
		}
		r.wantText("the pod's level", said("plain"), "system_u:system_r:container_t:s0:c100,c200")
		r.wantText("a level of its own", said("level", selinux(&v1.SELinuxOption{Level: "s0:c3"})),
			"system_u:system_r:container_t:s0:c3")
		r.wantText("a type of its own", said("type", selinux(&v1.SELinuxOption{Type: "spc_t"})),
			"system_u:system_r:spc_t:s0:c100,c200")
		free := security(func(s *v1.LinuxContainerSecurityContext) { s.Privileged = true })
		if got := said("privileged", free); strings.Contains(got, ":container_t:") {
			r.Errorf("a privileged container is %s", got)
		}
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id,
			busybox("bad", "true", selinux(&v1.SELinuxOption{Type: "nonesuch_t"})), p.config)
		r.wantCode(err, codes.InvalidArgument, "selinux_options", "nonesuch_t")
		p.wantNoContainer("bad")
		_, err = r.n.Runtime.RunPodSandbox(ctx(),
			r.n.Pod(unique(r.T)+"-bad", podSELinux(&v1.SELinuxOption{Role: "nonesuch_r"})), "")
		r.wantCode(err, codes.InvalidArgument, "selinux_options", "nonesuch_r")

		host := r.pod(func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = v1.NamespaceMode_NODE })
		c := host.start(busybox("main", asleep, host.like()))
		c.logged("up")
		if got := c.label(c.pid("sleep")); strings.Contains(got, ":container_t:") {
			r.Errorf("a container in the host's PID namespace is %s", got)
		}
	})
}

// TestSELinuxInit wants a pod that has an init, and one with a user namespace, to run as any other.
func TestSELinuxInit(t *testing.T) {
	needSELinux(t)
	each(t, func(r rig) {
		for name, change := range map[string]func(*v1.PodSandboxConfig){
			"shared-pid": func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions.Pid = v1.NamespaceMode_POD },
			"userns":     inUserns,
		} {
			config := r.n.Pod(unique(r.T)+name, change)
			id, err := r.n.Runtime.RunPodSandbox(ctx(), config, "")
			r.ok(err)
			p := &pod{r, id, config}
			r.Cleanup(p.remove)
			c := p.start(busybox(name, asleep, p.like()))
			c.logged("up")
			c.wantFiles(fileOf(c.level()), "/bin/sh", "/etc/hosts", "/dev/shm")
			r.wantText(name+": the first process", strings.Trim(c.exec("cat", "/proc/1/attr/current"), "\x00"),
				"system_u:system_r:container_t:"+c.level())
		}
	})
}

// TestSELinuxVolumes wants a volume relabelled where that is asked for, and only there.
func TestSELinuxVolumes(t *testing.T) {
	needSELinux(t)
	each(t, func(r rig) {
		p, dir := r.pod(), r.volume()
		relabel := func(m *v1.Mount) { m.SelinuxRelabel = true }
		before := r.fileLabel(dir + "/real/note")
		c := p.start(busybox("plain", asleep, mount(dir+"/real", "/data")))
		c.logged("up")
		if got := r.fileLabel(dir + "/real/note"); got != before {
			r.Errorf("a volume was relabelled from %s to %s, and nobody asked for it", before, got)
		}
		level := c.level()
		if os.Getenv(enforcing) != "" {
			r.wantText("a volume of the node", c.exec("sh", "-c", "cat /data/note 2>/dev/null || echo refused"), "refused")
		}
		config := busybox("relabelled", "cat /data/note /data/sub/deep && echo new >/data/made && cat /file",
			mount(dir+"/real", "/data", relabel), mount(dir+"/file", "/file", relabel))
		r.wantText("a relabelled volume", p.output(config), "real\ndeep\nfrom the host")
		for _, f := range []string{"/real", "/real/note", "/real/sub", "/real/sub/deep", "/file"} {
			r.wantText(f, r.fileLabel(dir+f), fileOf(level))
		}
		r.wantText("what is beside it", r.fileLabel(dir+"/link"), before)
		if os.Getenv(enforcing) != "" {
			theirs := r.pod().output(busybox("other", "cat /data/note 2>/dev/null || echo refused", mount(dir+"/real", "/data")))
			r.wantText("another pod's volume", theirs, "refused")
		}
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id, busybox("bad", "true", mount("/usr", "/data", relabel)), p.config)
		r.wantCode(err, codes.InvalidArgument, "/usr", "relabel")
		p.wantNoContainer("bad")
		for _, image := range []string{"data:latest", "one:latest"} {
			v := p.start(
				busybox(strings.TrimSuffix(image, ":latest"), "cat /v/model/a && "+asleep, imageMount(r.imageID(image), "/v")))
			v.logged("up")
			v.wantFiles(fileOf(level), "/v", "/v/model", "/v/model/a")
		}
	})
}

// TestSELinuxOutlivesTheDaemon wants a pod to keep its categories when the daemon is killed.
func TestSELinuxOutlivesTheDaemon(t *testing.T) {
	needSELinux(t)
	own(t, func(r rig) {
		p := r.pod()
		c := p.start(busybox("before", asleep))
		c.logged("up")
		level := c.level()
		r.ok(r.n.Restart())
		after := p.start(busybox("after", asleep))
		after.logged("up")
		if got := after.level(); got != level {
			r.Errorf("after a restart a container of the pod has %s, one from before %s", got, level)
		}
		if got := r.pod(func(c *v1.PodSandboxConfig) {
			c.Metadata.Attempt = 1
		}).start(busybox("new", asleep)).level(); got == level {
			r.Errorf("a new pod has the categories of another: %s", got)
		}
	})
}

// TestSELinuxOff wants no labels where the configuration says so.
func TestSELinuxOff(t *testing.T) {
	needSELinux(t)
	r := ownNode(t, node.Options{Runtime: runtimes()[0], Config: `selinux = "off"`})
	r.pull("busybox:latest")
	c := r.pod().start(busybox("main", asleep))
	c.logged("up")
	if got := c.label(c.pid("sleep")); strings.Contains(got, ":container_t:") {
		r.Errorf("a container is %s", got)
	}
}
