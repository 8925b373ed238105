package e2e

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/fixture"
	"berth/test/node"
)

// pushProbes pushes the image of probes to the shared registry, once.
var pushProbes = sync.OnceValue(func() error {
	img, err := fixture.ProbeImage()
	if err == nil {
		_, err = shared.registry.Push("probe:latest", img)
	}
	return err
})

// withProbes makes sure that the image of probes is on the node.
func (r rig) withProbes() {
	r.Helper()
	r.ok(pushProbes())
	r.pull("probe:latest")
}

// probe is a container that runs the probe for an architecture.
func probe(name, arch, mode string, edits ...edit) *v1.ContainerConfig {
	args := append([]string{"/probe-" + arch}, strings.Fields(mode)...)
	return node.Container(name, ref("probe:latest"), args, edits...)
}

// probes is how many containers have run a probe; it gives each a name of its own.
var probes atomic.Int32

// socketAnswers are what the kernel said to the sockets of a container, by the way to open them and the family.
type socketAnswers map[string]map[int]string

func (p *pod) sockets(arch string, edits ...edit) socketAnswers {
	p.Helper()
	all := socketAnswers{}
	out := p.output(probe(fmt.Sprintf("sockets-%s-%d", arch, probes.Add(1)), arch, "sockets", edits...))
	for line := range strings.Lines(out) {
		var family int
		var way, answer string
		if _, err := fmt.Sscan(line, &family, &way, &answer); err != nil {
			p.Fatalf("the probe said %q: %v", line, err)
		}
		if all[way] == nil {
			all[way] = map[int]string{}
		}
		all[way][family] = answer
	}
	return all
}

// usualFamilies are those of which a container without more than the usual capabilities can open a datagram socket
// here.
var usualFamilies = []int{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET}

// specialFamilies are open, too, for containers that are given what they need: a capability, a device, a kernel module.
var specialFamilies = []int{unix.AF_KEY, unix.AF_PPPOX, unix.AF_CAN, unix.AF_BLUETOOTH, unix.AF_XDP}

// wantClosed wants the usual families to open by this way, and all others but the special ones to be refused with this
// error.
func (r rig) wantClosed(what string, answers map[int]string, refusal string) {
	r.Helper()
	if len(answers) < 40 {
		r.Fatalf("%s: the probe has tried %d families only", what, len(answers))
	}
	for family, answer := range answers {
		switch {
		case slices.Contains(usualFamilies, family):
			if answer != "ok" && answer != "ENOTSUP" { // of no socketpair
				r.Errorf("%s: family %d, which every container uses, gives %s", what, family, answer)
			}
		case slices.Contains(specialFamilies, family):
		case answer == "EAFNOSUPPORT" && !fixture.KernelHasFamily(family): // what is before the kernel may not have seen it
		case answer != refusal:
			r.Errorf("%s: family %d gives %s, wanted %s", what, family, answer, refusal)
		}
	}
}

// kernelsOwn are the answers of a kernel that has the family, has not, or has no such socket of it.
var kernelsOwn = []string{"ok", "EAFNOSUPPORT", "ESOCKTNOSUPPORT", "ENODEV", "ENOTSUP"}

// wantOpen wants the kernel itself to answer, and not what is before it.
func (r rig) wantOpen(what string, answers map[int]string, families ...int) {
	r.Helper()
	for _, family := range families {
		if got := answers[family]; !slices.Contains(kernelsOwn, got) {
			r.Errorf("%s: family %d gives %q: something is before the kernel, and this shows nothing", what, family, got)
		}
	}
}

// exotic are families that no ordinary container needs, and that a filter was to keep from them.
var exotic = []int{unix.AF_ALG, unix.AF_VSOCK, unix.AF_TIPC, unix.AF_RDS}

// eachStrict runs f on a node of its own for each runtime, with a handler "strict" beside the default.
func eachStrict(t *testing.T, f func(r rig)) {
	t.Helper()
	t.Parallel()
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(runtime)
			if err != nil {
				t.Fatal(err)
			}
			r := ownNode(t, node.Options{Runtime: runtime, Tables: fmt.Sprintf(`
[runtimes.strict]
path = %q
seccomp.socketcall = "deny"
`, program)})
			r.pull("busybox:latest")
			f(r)
		})
	}
}

// TestSocketFamilies has the default filter close the families that no ordinary container needs, for 64 and for 32
// bits, and shows what it leaves open: a 32-bit program reaches all of them by socketcall, unless the handler's
// seccomp.socketcall says otherwise.
func TestSocketFamilies(t *testing.T) {
	eachStrict(t, func(r rig) {
		r.withProbes()
		const none, standard = v1.SecurityProfile_Unconfined, v1.SecurityProfile_RuntimeDefault
		filtered := both(seccomp(standard, ""), confined(none, ""))
		free := both(seccomp(none, ""), confined(none, ""))
		p, strict := r.pod(), r.podOf("strict", func(c *v1.PodSandboxConfig) { c.Metadata.Name += "-strict" })
		for _, arch := range fixture.ProbeArchitectures() {
			usual, denied := p.sockets(arch, filtered), strict.sockets(arch, filtered)
			for way, answers := range p.sockets(arch, free) {
				r.wantOpen(arch+", "+way+", unconfined", answers, exotic...)
			}
			for _, way := range []string{"socket", "socketpair"} {
				r.wantClosed(arch+", "+way+", by the filter", usual[way], "EPERM")
				r.wantClosed(arch+", "+way+", by a strict filter", denied[way], "EPERM")
			}
			if arch == "386" {
				r.wantSocketcall(usual, denied)
			}
		}
	})
}

// wantSocketcall wants the usual filter to let a 32-bit program reach all families by socketcall, a strict one none.
func (r rig) wantSocketcall(usual, strict socketAnswers) {
	r.Helper()
	for _, way := range []string{"socketcall", "socketcall-pair"} {
		r.wantOpen(way+", by the filter", usual[way], exotic...)
		if len(strict[way]) < 40 {
			r.Errorf("by a strict filter %d families were tried by %s", len(strict[way]), way)
		}
		for family, answer := range strict[way] {
			if answer != "ENOSYS" {
				r.Errorf("by a strict filter: %s of family %d gives %s, wanted ENOSYS", way, family, answer)
			}
		}
	}
}

// TestAppArmorSocketFamilies wants the default profile alone, without a filter, to close them on every way.
func TestAppArmorSocketFamilies(t *testing.T) {
	needAppArmor(t)
	each(t, func(r rig) {
		r.withProbes()
		p := r.pod()
		const none, standard = v1.SecurityProfile_Unconfined, v1.SecurityProfile_RuntimeDefault
		alone := both(seccomp(none, ""), confined(standard, ""))
		usual := both(seccomp(standard, ""), confined(standard, ""))
		free := both(seccomp(none, ""), confined(none, ""))
		for _, arch := range fixture.ProbeArchitectures() {
			for way, answers := range p.sockets(arch, free) {
				r.wantOpen(arch+", "+way+", unconfined", answers, exotic...)
			}
			for way, answers := range p.sockets(arch, alone) {
				r.wantClosed(arch+", "+way+", by the profile", answers, "EACCES")
			}
		}
		if slices.Contains(fixture.ProbeArchitectures(), "386") {
			r.wantClosed("socketcall, by profile and filter", p.sockets("386", usual)["socketcall"], "EACCES")
		}
	})
}

// TestI386Image has 32-bit programs of Debian resolve a name and fetch a page, under the default profiles. A handler
// that denies socketcall takes the network from them.
func TestI386Image(t *testing.T) {
	if !slices.Contains(fixture.ProbeArchitectures(), "386") {
		t.Skip("this machine runs no 32-bit programs")
	}
	img, err := fixture.I386Image()
	if err != nil {
		fixture.Unavailable(t, err)
	}
	eachStrict(t, func(r rig) {
		r.withProbes()
		tag := "i386-" + unique(r.T) + ":latest"
		r.push(tag, img)
		r.pull(tag)
		server := r.pod()
		server.start(webapp("web", "serve"))
		names := server.start(probe("names", fixture.ProbeArchitectures()[0], "names page.berth.test "+server.ip()))
		names.logged("serving names")
		client := func(handler string) string {
			p := r.podOf(handler, func(c *v1.PodSandboxConfig) {
				c.Metadata.Name += "-client" + handler
				c.DnsConfig = &v1.DNSConfig{Servers: []string{server.ip()}}
			})
			script := "getent hosts page.berth.test; wget -q -O - http://page.berth.test:8080/; " +
				"busybox grep Seccomp: /proc/self/status"
			filtered := seccomp(v1.SecurityProfile_RuntimeDefault, "")
			return p.output(node.Container("client", ref(tag), []string{"sh", "-c", script}, filtered))
		}
		out := client("")
		for _, want := range []string{server.ip() + " ", "page.berth.test", "Hello from", "Seccomp:\t2"} {
			if !strings.Contains(out, want) {
				r.Errorf("the 32-bit programs say %q, and not %q", out, want)
			}
		}
		r.wantText("without socketcall", strings.ReplaceAll(client("strict"), "\t", ""), "Seccomp:2")
	})
}
