package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// needAppArmor skips a test where the kernel has none.
func needAppArmor(t *testing.T) {
	t.Helper()
	if on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err != nil ||
		strings.TrimSpace(string(on)) != "Y" {
		t.Skip("this kernel does not enforce AppArmor: make test-vm does")
	}
}

func confined(kind v1.SecurityProfile_ProfileType, name string) edit {
	return security(func(s *v1.LinuxContainerSecurityContext) {
		s.Apparmor = &v1.SecurityProfile{ProfileType: kind, LocalhostRef: name}
	})
}

// open takes away the other walls before /proc and /sys, so that a profile is all that is in the way.
func open(more ...edit) edit {
	return func(c *v1.ContainerConfig) {
		caps([]string{"SYS_ADMIN", "SYS_RAWIO", "NET_ADMIN"}, nil)(c)
		seccomp(v1.SecurityProfile_Unconfined, "")(c)
		security(func(s *v1.LinuxContainerSecurityContext) { s.MaskedPaths, s.ReadonlyPaths = nil, nil })(c)
		for _, edit := range more {
			edit(c)
		}
	}
}

// loadProfile gives the kernel a profile for as long as the test takes.
func (r rig) loadProfile(name, rules string) {
	r.Helper()
	parse := func(flag string) error {
		cmd := exec.Command("apparmor_parser", flag, "--skip-cache", "--quiet")
		cmd.Stdin = strings.NewReader("profile " + name + " flags=(attach_disconnected) {\n" + rules + "\n}\n")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	r.ok(parse("--replace"))
	r.Cleanup(func() {
		if err := parse("--remove"); err != nil {
			r.Errorf("unload the profile %s: %v", name, err)
		}
	})
}

// whichProfile prints the label of the process. Without a profile it is what the runtime has: unconfined, or what a
// distribution calls its unconfined runtimes, so that they may make user namespaces.
const whichProfile = "sed 's/.*(unconfined)/unconfined/' /proc/self/attr/current"

func TestAppArmor(t *testing.T) {
	needAppArmor(t)
	each(t, func(r rig) {
		mine := unique(r.T)
		r.loadProfile(mine, "file,\ncapability,\nnetwork,\nunix,\nsignal,\nptrace,\ndeny /tmp/** w,")
		p := r.pod(func(c *v1.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
		privileged := security(func(s *v1.LinuxContainerSecurityContext) { s.Privileged = true })
		none := func(*v1.ContainerConfig) {}
		standard, free := confined(v1.SecurityProfile_RuntimeDefault, ""), confined(v1.SecurityProfile_Unconfined, "")
		named := confined(v1.SecurityProfile_Localhost, mine)
		for _, c := range []struct {
			name, script, want string
			edit               edit
		}{
			{"nothing", whichProfile, "berth-default (enforce)", none},
			{"default", whichProfile, "berth-default (enforce)", standard},
			{"unconfined", whichProfile, "unconfined", free},
			{"privileged", whichProfile, "unconfined", privileged},
			{"named", whichProfile, mine + " (enforce)", named},
			{"named-privileged", whichProfile, mine + " (enforce)", func(c *v1.ContainerConfig) { privileged(c); named(c) }},
			{"named-denies", "touch /tmp/x 2>/dev/null || echo refused; touch /root/x && echo done", "refused\ndone", named},
			{"no-mount", "mount -t tmpfs none /mnt 2>/dev/null || mount -t tmpfs none /tmp 2>/dev/null || echo refused",
				"refused", open(standard)},
			{"free-mount", "mount -t tmpfs none /tmp && echo mounted", "mounted", open(free)},
		} {
			r.wantText(c.name, p.output(busybox(c.name, c.script, c.edit)), c.want)
		}
	})
}

// forbidden writes back what is there, to each of the files that a container must not write to and prints those that
// took it.
const forbidden = `for f in /proc/sys/kernel/hostname /proc/sys/kernel/modprobe /proc/sys/kernel/sysrq /proc/sys/kernel/core_pattern \
 /proc/sys/kernel/seccomp/actions_logged /proc/sys/kernel/max_lock_depth /proc/sys/kernel/panic /proc/sys/vm/swappiness \
 /proc/sys/fs/file-max /proc/sys/net/ipv4/ip_forward /proc/irq/default_smp_affinity; do
  [ -e $f ] || continue
  old=$(cat $f 2>/dev/null) && { echo "$old" >$f; } 2>/dev/null && echo $f
done
{ echo h >/proc/sysrq-trigger; } 2>/dev/null && echo /proc/sysrq-trigger
{ true </proc/kcore; } 2>/dev/null && echo /proc/kcore
true`

// allowed writes to what is a container's own.
const allowed = `for f in /proc/sys/kernel/shmmax /proc/sys/kernel/msgmax /proc/sys/kernel/shm_rmid_forced /proc/self/comm /proc/self/oom_score_adj; do
  old=$(cat $f) && { echo "$old" >$f; } 2>/dev/null || echo $f
done
true`

// TestAppArmorDefaultProfile wants the daemon's own profile to keep a container from the machine's knobs, and not from
// its own. The same container without it shows that nothing else was in the way.
func TestAppArmorDefaultProfile(t *testing.T) {
	needAppArmor(t)
	each(t, func(r rig) {
		p := r.pod()
		free, standard := open(confined(v1.SecurityProfile_Unconfined, "")),
			open(confined(v1.SecurityProfile_RuntimeDefault, ""))
		took := p.output(busybox("free", forbidden, free))
		for _, must := range []string{"kernel/hostname", "kernel/sysrq", "vm/swappiness", "net/ipv4/ip_forward",
			"sysrq-trigger", "kcore"} {
			if !strings.Contains(took, must) {
				r.Errorf("without a profile nothing can be done to %s either, so this shows nothing of it; what took it: %s", must,
					took)
			}
		}
		r.wantText("what the profile lets through", p.output(busybox("confined", forbidden, standard)), "")
		r.wantText("what the profile must let through", p.output(busybox("own", allowed, standard)), "")
	})
}

// TestAppArmorMissing wants a container refused, and nothing of it left, when its profile is not loaded.
func TestAppArmorMissing(t *testing.T) {
	needAppArmor(t)
	each(t, func(r rig) {
		p := r.pod()
		_, err := r.n.Runtime.CreateContainer(ctx(), p.id,
			busybox("bad", "true", confined(v1.SecurityProfile_Localhost, "no-such-profile")), p.config)
		r.wantCode(err, codes.FailedPrecondition, "no-such-profile", "not loaded", "apparmor_parser")
		p.wantNoContainer("bad")
		c := p.start(busybox("main", "sleep 1000"))
		r.wantText("the pod's next container", c.exec("cat", "/proc/1/attr/current"), "berth-default (enforce)")
	})
}

// TestAppArmorSignals wants a confined container to be entered, stopped and killed, and its processes to signal each
// other.
func TestAppArmorSignals(t *testing.T) {
	needAppArmor(t)
	each(t, func(r rig) {
		p := r.pod()
		polite := p.start(busybox("polite", "trap 'exit 7' TERM; echo up; while :; do sleep 1 & wait $!; done"))
		polite.logged("up")
		r.wantText("an exec", polite.exec("cat", "/proc/self/attr/current"), "berth-default (enforce)")
		r.wantText("a signal among them", polite.exec("sh", "-c", "sleep 1000 & kill $! && wait $!; echo $?"), "143")
		r.ok(r.n.Runtime.StopContainer(ctx(), polite.cid, seconds(60)))
		if st := polite.finish(); st.ExitCode != 7 {
			r.Errorf("after SIGTERM the container ended with %d, want 7: the signal did not arrive", st.ExitCode)
		}
		deaf := p.start(busybox("deaf", "trap '' TERM; echo up; while :; do sleep 1; done"))
		deaf.logged("up")
		r.ok(r.n.Runtime.StopContainer(ctx(), deaf.cid, 1))
		if st := deaf.finish(); st.ExitCode != 137 {
			r.Errorf("a container that ignores SIGTERM ended with %d, want 137", st.ExitCode)
		}
	})
}

// TestAppArmorWithoutSignals wants a container stopped and removed whose profile has no rules for signals: the kernel
// refuses those of the daemon, too, and lets the cgroup be killed.
func TestAppArmorWithoutSignals(t *testing.T) {
	needAppArmor(t)
	each(t, func(r rig) {
		mine := unique(r.T)
		r.loadProfile(mine, "file,\ncapability,\nnetwork,\nunix,\nptrace,")
		p := r.pod()
		c := p.start(busybox("main", "trap 'exit 7' TERM; echo up; while :; do sleep 1 & wait $!; done",
			confined(v1.SecurityProfile_Localhost, mine)))
		c.logged("up")
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, 1))
		if st := c.finish(); st.ExitCode != 137 {
			r.Errorf("it ended with %d, want 137: by the kill of its cgroup, since no signal reaches it", st.ExitCode)
		}
		r.ok(r.n.Runtime.RemoveContainer(ctx(), c.cid))
	})
}
