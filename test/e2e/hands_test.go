package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHandsRun gives berth run each flag that changes what a container sees, and has the container tell.
func TestHandsRun(t *testing.T) {
	each(t, func(r rig) {
		image := ref("busybox:latest")
		file := filepath.Join(r.TempDir(), "env")
		r.ok(os.WriteFile(file, []byte("F=from a file\n"), 0o644))
		for name, c := range map[string]struct{ flags, script, want string }{
			"user":       {"-u 1000:50 --group-add 7", "id -u; id -g; id -G", "1000 50 50 7"},
			"workdir":    {"-w /made/for/it", "pwd", "/made/for/it"},
			"entrypoint": {"--entrypoint /bin/echo", "", "-c"},
			"env":        {"--env-file " + file + " -e E=e", "echo $F $E", "from a file e"},
			"memory": {"-m 64m", "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null; true",
				"67108864"},
			"pids": {"--pids-limit 77", "cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; true",
				"77"},
			"score":     {"--oom-score-adj 321", "cat /proc/self/oom_score_adj", "321"},
			"read-only": {"--read-only", "touch /x 2>/dev/null || echo no", "no"},
			"drop":      {"--cap-drop ALL", "grep CapEff /proc/self/status | tr -d '\\t'", "CapEff:0000000000000000"},
			"privileges": {"--security-opt no-new-privileges", "grep NoNewPrivs /proc/self/status | tr -d '\\t'",
				"NoNewPrivs:1"},
			"unconfined": {"--security-opt seccomp=unconfined", "grep Seccomp: /proc/self/status | tr -d '\\t'", "Seccomp:0"},
			"confined":   {"", "grep Seccomp: /proc/self/status | tr -d '\\t'", "Seccomp:2"},
			"tmpfs": {"--read-only --tmpfs /mem:size=1m,mode=700", "touch /mem/x && grep ' /mem ' /proc/mounts",
				"tmpfs /mem tmpfs"},
			"mount": {"--mount type=bind,src=/etc,dst=/host,ro", "touch /host/x 2>/dev/null || cat /host/hostname",
				hostname(r)},
			"ulimit":   {"--ulimit nofile=100:200", "ulimit -n; ulimit -H -n", "100 200"},
			"hostname": {"-h other", "hostname; cat /etc/hostname", "other other"},
			"sysctl":   {"--sysctl net.ipv4.ip_forward=1", "cat /proc/sys/net/ipv4/ip_forward", "1"},
			"dns": {"--dns 192.0.2.1 --dns-search a.b --dns-opt ndots:3", "cat /etc/resolv.conf",
				"search a.b nameserver 192.0.2.1 options ndots:3"},
			"shm":         {"--shm-size 3m", "df -k /dev/shm | tail -1", "3072"},
			"device":      {"--device /dev/fuse:/dev/other", "test -c /dev/other && echo there", "there"},
			"host's pids": {"--pid host", "test $(cat /proc/1/comm) != sh && echo other", "other"},
		} {
			r.sub(name, func(r rig) {
				r.Parallel()
				args := append([]string{"run", "--rm", "--log-dir", r.n.Logs}, strings.Fields(c.flags)...)
				args = append(args, image)
				if name == "entrypoint" {
					args = append(args, "-c")
				} else {
					args = append(args, "sh", "-c", c.script)
				}
				out := strings.Join(strings.Fields(r.mustBerth(args...)), " ")
				if !strings.Contains(out, c.want) {
					r.Errorf("%s: %q, want %q", c.flags, out, c.want)
				}
			})
		}
	})
}

func hostname(r rig) string {
	name, err := os.ReadFile("/etc/hostname")
	r.ok(err)
	return strings.TrimSpace(string(name))
}

// TestHandsExitCodes has the codes that shells have for what cannot be executed, by the words of each runtime.
func TestHandsExitCodes(t *testing.T) {
	each(t, func(r rig) {
		image, name := ref("busybox:latest"), "codes-"+unique(r.T)
		r.mustBerth("run", "-d", "--net", "host", "--log-dir", r.n.Logs, "--name", name, image, "sleep", "1000")
		r.Cleanup(func() { r.mustBerth("rm", "-f", name) })
		for _, c := range []struct {
			command string
			want    int
		}{
			{"/no/such/program", 127}, {"no-such-program", 127}, {"/etc/passwd", 126}, {"/etc", 126}, {"sh -c 'exit 9'", 9},
			{"sh -c 'kill -9 $$'", 137}, {"true", 0}, // a first process cannot kill itself, so only exec can be asked for that
		} {
			command := strings.Fields(c.command)
			if strings.HasPrefix(c.command, "sh -c") {
				command = []string{"sh", "-c", strings.Trim(c.command[6:], "'")}
			}
			run := append([]string{"run", "--rm", "--net", "host", "--log-dir", r.n.Logs, image}, command...)
			if _, stderr, code := r.berth(run...); code != c.want && c.want != 137 {
				r.Errorf("run %s: exit code %d, want %d: %s", c.command, code, c.want, stderr)
			}
			if _, stderr, code := r.berth(append([]string{"exec", name}, command...)...); code != c.want {
				r.Errorf("exec %s: exit code %d, want %d: %s", c.command, code, c.want, stderr)
			}
		}
		if _, stderr, code := r.berth("run", "--rm", "--pull", "never", "nowhere.test/x"); code != 125 {
			r.Errorf("an image that is not there: exit code %d: %s", code, stderr)
		}
	})
}

// TestHandsPod has two containers in a pod of berth run: they share a network and go one by one.
func TestHandsPod(t *testing.T) {
	each(t, func(r rig) {
		image, name := ref("busybox:latest"), "duo-"+unique(r.T)
		run := func(args ...string) string {
			return r.mustBerth(append([]string{"run", "--log-dir", r.n.Logs}, args...)...)
		}
		run("-d", "--name", name, "-l", "app="+name, image, "sh", "-c", "echo first; sleep 1000")
		r.Cleanup(func() { r.mustBerth("rm", "-f", name) })
		side := func(args ...string) string {
			return r.mustBerth(append([]string{"run", "--pod", name}, args...)...)
		}
		side("-d", "--name", "side", image, "sh", "-c", "echo second; sleep 1000")
		link := strings.TrimSpace(r.mustBerth("exec", name, "readlink", "/proc/self/ns/net"))
		if got := side("--rm", image, "readlink", "/proc/self/ns/net"); strings.TrimSpace(got) != link {
			r.Errorf("network %q beside %q", got, link)
		}
		r.eventually("both logs are there", func() bool {
			out := r.mustBerth("logs", "--all-containers", name)
			return strings.Contains(out, name+" first\n") && strings.Contains(out, "side second\n")
		})
		if out := r.mustBerth("ps", "-q", "--pod", name); len(strings.Fields(out)) != 2 {
			r.Errorf("ps: %q", out)
		}
		if out := r.mustBerth("ps", "--label", "app="+name); !strings.Contains(out, name) || strings.Contains(out, "side") {
			r.Errorf("ps by label: %s", out)
		}
		r.mustBerth("rm", "-f", name+"/side")
		if out := r.mustBerth("ps", "-a", "-q", "--pod", name); len(strings.Fields(out)) != 1 {
			r.Errorf("after rm of one: %q", out)
		}
		if out := r.mustBerth("top", name); !strings.Contains(out, "sleep 1000") {
			r.Errorf("top: %s", out)
		}
		r.mustBerth("update", "--cpus", "0.5", "-m", "100m", name)
		if out := r.mustBerth("inspect", name); !strings.Contains(out, "104857600") {
			r.Errorf("after update: %s", out)
		}
		r.mustBerth("kill", name)
		if out := r.mustBerth("wait", name); strings.TrimSpace(out) != "137" {
			r.Errorf("wait: %q", out)
		}
	})
}

// TestHandsExec runs commands as somebody else, elsewhere, and with nobody at their streams.
func TestHandsExec(t *testing.T) {
	each(t, func(r rig) {
		image, name := ref("busybox:latest"), "exec-"+unique(r.T)
		r.mustBerth("run", "-d", "--net", "host", "--log-dir", r.n.Logs, "--name", name, image, "sh", "-c",
			"echo 'web:x:77:88::/srv:/bin/sh' >>/etc/passwd; echo 'crew:x:99:web' >>/etc/group; trap 'echo hup; exit 3' HUP; "+
				"echo ready; while true; do sleep 0.1; done")
		r.Cleanup(func() { r.mustBerth("rm", "-f", name) })
		r.eventually("it is ready", func() bool { return strings.Contains(r.mustBerth("logs", name), "ready") })
		for flags, c := range map[string]struct{ script, want string }{
			"-u 5":                {"id -u; id -g", "5 0"},
			"-u web":              {"id -u; id -g; id -G; echo $HOME", "77 88 88 99 /srv"},
			"-u web:crew":         {"id -u; id -g", "77 99"},
			"-u 77":               {"grep CapEff /proc/self/status | tr -d '\\t'", "CapEff:0000000000000000"},
			"-u 0":                {"id -u", "0"},
			"-w /etc -e A=b -e C": {"pwd; echo $A$C", "/etc b"},
		} {
			args := append(append([]string{"exec"}, strings.Fields(strings.ReplaceAll(flags, " -e C", ""))...), name, "sh",
				"-c", c.script)
			if out := strings.Join(strings.Fields(r.mustBerth(args...)), " "); out != c.want {
				r.Errorf("%s: %q, want %q", flags, out, c.want)
			}
		}
		if _, stderr, code := r.berth("exec", "-u", "nobody-at-all", name, "true"); code != 125 || !strings.Contains(stderr,
			"nobody-at-all") {
			r.Errorf("a user that is not there: exit code %d: %s", code, stderr)
		}
		if _, stderr, code := r.berth("exec", "-w", "srv", name, "true"); code != 125 || !strings.Contains(stderr,
			"absolute") {
			r.Errorf("a relative directory: exit code %d: %s", code, stderr)
		}
		for command, want := range map[string]int{"/no/such": 127, "/etc/passwd": 126} {
			if _, stderr, code := r.berth("exec", name, command); code != want || strings.Count(stderr, "\n") != 1 {
				r.Errorf("%s is told about once, with the code %d: exit code %d: %s", command, want, code, stderr)
			}
		}
		if _, stderr, code := r.berth("cp", name+":/no/such", r.TempDir()); code != 3 || !strings.Contains(stderr,
			"there is no such file in the container") {
			r.Errorf("a copy of what is not there: exit code %d: %s", code, stderr)
		}
		r.mustBerth("exec", "-d", name, "sh", "-c", "sleep 1; echo $$ >/tmp/ran; sleep 1000")
		r.eventually("the detached command runs on", func() bool {
			_, _, code := r.berth("exec", name, "sh", "-c", "kill -0 $(cat /tmp/ran)")
			return code == 0
		})
		// A daemon watches the start for half a second, which is not always enough on a busy machine.
		r.eventually("a detached command that is not there is told of", func() bool {
			_, _, code := r.berth("exec", "-d", name, "/no/such")
			return code == 127
		})
		r.mustBerth("kill", "-s", "HUP", name)
		if out := r.mustBerth("wait", name); strings.TrimSpace(out) != "3" {
			r.Errorf("its exit code after HUP: %q", out)
		}
		if _, stderr, code := r.berth("kill", name); code == 0 || !strings.Contains(stderr, "not running") {
			r.Errorf("a signal for what has ended: exit code %d: %s", code, stderr)
		}
	})
}

// TestHandsTag names an image, moves the name, and writes and reads an archive.
func TestHandsTag(t *testing.T) {
	own(t, func(r rig) {
		image := r.pull("busybox:latest")
		r.mustBerth("tag", image, "hands.test/a:1", "hands.test/b:1")
		r.mustBerth("run", "--rm", "--net", "host", "--log-dir", r.n.Logs, "--pull", "never", "hands.test/a:1", "true")
		archive := filepath.Join(r.TempDir(), "a.tar")
		r.mustBerth("save", "-o", archive, "hands.test/b:1")
		other := r.pull("entry:latest")
		r.mustBerth("tag", other, "hands.test/b:1")
		if out := r.mustBerth("images", "-q", "hands.test/b"); out != r.mustBerth("images", "-q", other) {
			r.Errorf("the tag did not move: %q", out)
		}
		r.mustBerth("load", "-i", archive)
		if out := r.mustBerth("images", "-q", "hands.test/b"); out != r.mustBerth("images", "-q", image) {
			r.Errorf("the tag did not come back: %q", out)
		}
		r.mustBerth("rmi", "hands.test/b:1", "hands.test/a:1") // and the image keeps the name that it had
		if left := r.mustBerth("images", "-q", image); left == "" || r.mustBerth("images", "-q", "hands.test/*") != "" {
			r.Errorf("of the names of an image others went than were named: %q", r.mustBerth("images"))
		}
		for _, bad := range []string{"UPPER", "a@sha256:" + strings.Repeat("0", 64)} {
			if _, stderr, code := r.berth("tag", image, bad); code != 2 {
				r.Errorf("%s: exit code %d: %s", bad, code, stderr)
			}
		}
	})
}
