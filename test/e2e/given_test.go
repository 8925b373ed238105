package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// TestWhatTheDaemonIsGiven starts a daemon with a umask that hides files from others, on one processor, with a policy,
// a nice value and an I/O priority of its own, and with no environment or standard streams, as its unit, a shell or a
// supervisor may do. Pods get none of it: what they share with others can be read and used by them, their processes are
// scheduled as any other, and plugins find their programs.
func TestWhatTheDaemonIsGiven(t *testing.T) {
	for _, runtime := range runtimes() {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			script := `umask 0077; exec prlimit --fsize=100000000000 --data=400000000 taskset -c 0 chrt --batch 0 nice -n 3 ionice -c 2 -n 7 ` +
				`env -i "$@" <&- >&- 2>&-`
			r := ownNode(t, node.Options{Runtime: runtime, Starter: []string{"sh", "-c", script, "sh"}})
			r.pull("busybox:latest")
			const scheduled = `set -- $(cut -d ' ' -f 19,41 /proc/self/stat); echo nice $1 policy $2 $(ionice); umask; ` +
				`grep -o 'Cpus_allowed_list.*' /proc/self/status`
			self, err := os.ReadFile("/proc/self/status")
			r.ok(err)
			cpus := regexp.MustCompile(`Cpus_allowed_list.*`).FindString(string(self))
			want := "nice 0 policy 0 none: prio 0\n0022\n" + cpus
			const shared = `stat -c '%a %n' /etc/hosts /etc/resolv.conf /etc/hostname /dev/null /dev/zero; cat /etc/resolv.conf ` +
				`>/dev/null; echo x > /dev/null && echo written; touch /tmp/x && echo made`
			asUser := func(c *v1.ContainerConfig) { c.Linux.SecurityContext.RunAsUser = &v1.Int64Value{Value: 1000} }
			modes := "644 /etc/hosts\n644 /etc/resolv.conf\n644 /etc/hostname\n666 /dev/null\n666 /dev/zero\nwritten\nmade"
			for name, p := range map[string]*pod{"plain": r.pod(), "userns": r.pod(inUserns)} {
				r.wantText(name, ioClass(p.output(busybox("scheduled", scheduled, p.like()))), want)
				r.wantText(name, p.output(busybox("shared", shared, p.like(), asUser)), modes)
				c := p.start(busybox("main", "sleep 1000000", p.like()))
				r.wantText(name+", exec", ioClass(c.exec("sh", "-c", scheduled)), want)
			}
		})
	}
}

// ioClass has the priority of who has no class be 0, as newer kernels say; Linux 5.10 says 4.
func ioClass(text string) string { return strings.Replace(text, "none: prio 4", "none: prio 0", 1) }

// TestNiceDaemon has a daemon that is nicer than its helpers are to be, and may not raise their priority.
func TestNiceDaemon(t *testing.T) {
	starter := []string{"nice", "-n", "19", "setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"}
	r := ownNode(t, node.Options{Runtime: runtimes()[0], Starter: starter})
	r.pull("busybox:latest")
	r.wantText("output", r.pod().output(busybox("main", "echo hi")), "hi")
}
