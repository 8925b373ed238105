package e2e

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"berth/test/fixture"
	"berth/test/node"
)

// berth runs the command line against the node. It returns what went to stdout and stderr, and the exit code.
func (r rig) berth(args ...string) (stdout, stderr string, code int) {
	r.Helper()
	out, errOut := new(strings.Builder), new(strings.Builder)
	cmd := r.n.Command(args...)
	cmd.Stdout, cmd.Stderr = out, errOut
	err := r.n.Space.Run(cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// mustBerth runs the command line, which must succeed.
func (r rig) mustBerth(args ...string) string {
	r.Helper()
	stdout, stderr, code := r.berth(args...)
	if code != 0 {
		r.Fatalf("berth %s: exit code %d: %s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// TestCommandLineLife goes through what README shows, on a node of its own.
func TestCommandLineLife(t *testing.T) {
	t.Parallel() // it has nodes of its own, and mostly waits
	own(t, func(r rig) {
		image := ref("busybox:latest")
		r.mustBerth("pull", image)
		r.mustBerth("run", "-d", "--name", "cli", "--log-dir", r.n.Logs, "-e", "A=b", image, "sh", "-c",
			"echo out-$A; sleep 1000")
		r.eventually("the log shows", func() bool { return strings.Contains(r.mustBerth("logs", "cli"), "out-b") })
		for _, c := range []struct{ args, has string }{
			{"ps", "cli"}, {"pods", "cli"}, {"images", "busybox"}, {"inspect cli", `"id"`},
			{"exec cli -- echo inside", "inside"}, {"exec cli cat /proc/1/cmdline", "sleep"},
			{"version", "berth"}, {"check", ""}, {"config", r.n.CNI},
		} {
			if out := r.mustBerth(strings.Fields(c.args)...); !strings.Contains(out, c.has) {
				r.Errorf("berth %s lacks %q: %s", c.args, c.has, out)
			}
		}
		for _, list := range []string{"ps", "pods", "images"} {
			if out := r.mustBerth(list, "--output", "json"); !json.Valid([]byte(out)) {
				r.Errorf("berth %s --output json: %s", list, out)
			}
		}
		if _, stderr, code := r.berth("rm", "cli"); code == 0 || !strings.Contains(stderr, "-f") {
			r.Errorf("rm of what runs: exit code %d, %s", code, stderr)
		}
		r.mustBerth("stop", "cli")
		r.mustBerth("rm", "cli")
		if out := r.mustBerth("pods"); strings.Contains(out, "cli") {
			r.Errorf("after rm: %s", out)
		}
		r.mustBerth("rmi", image)
	})
}

func TestCommandLineForeground(t *testing.T) {
	each(t, func(r rig) {
		image := ref("busybox:latest")
		stdout, _, code := r.berth("run", "--rm", "--net", "host", "--log-dir", r.n.Logs, image, "sh", "-c",
			"echo said; exit 6")
		if code != 6 || strings.TrimSpace(stdout) != "said" {
			r.Errorf("exit code %d, %q", code, stdout)
		}
	})
}

func TestCommandLineRefusals(t *testing.T) {
	each(t, func(r rig) {
		for _, c := range []struct{ args, says string }{
			{"logs nobody", "nobody"}, {"exec nobody true", "nobody"}, {"inspect nobody", "nobody"}, {"rm nobody", "nobody"},
			{"frobnicate", "frobnicate"}, {"ps --output xml", "xml"}, {"image import /no/such/file", "/no/such/file"},
			{"run UPPER:bad:ref true", "UPPER"},
		} {
			stdout, stderr, code := r.berth(strings.Fields(c.args)...)
			if code == 0 || !strings.Contains(stderr, c.says) {
				r.Errorf("berth %s: exit code %d: %s%s", c.args, code, stdout, stderr)
			}
		}
		cmd := r.n.Command("--socket", "/no/such/socket", "ps")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "/no/such/socket") {
			r.Errorf("without a daemon: %v, %s", err, out)
		}
	})
}

func TestImport(t *testing.T) {
	each(t, func(r rig) {
		img, err := fixture.Busybox()
		r.ok(err)
		for kind, write := range map[string]func(path string) (string, error){
			"oci": func(path string) (string, error) {
				return "import.test/oci:v1", fixture.WriteOCI(path, "import.test/oci:v1", img)
			},
			"docker": func(path string) (string, error) {
				return "import.test/docker:v1", fixture.WriteDocker(path, "import.test/docker:v1", img)
			},
		} {
			path := r.TempDir() + "/" + kind + ".tar"
			name, err := write(path)
			r.ok(err)
			r.mustBerth("image", "import", path)
			if got := r.image(name); got == nil {
				r.Errorf("%s: not known as %s: %s", kind, name, r.mustBerth("images"))
				continue
			}
			p := r.pod()
			r.wantText(kind, p.output(node.Container(kind, name, []string{"echo", "imported"})), "imported")
		}
	})
}

func TestDoctor(t *testing.T) {
	each(t, func(r rig) {
		stdout, stderr, _ := r.berth("doctor")
		for _, word := range []string{"kernel", "runtime", "network", "disk"} {
			if !strings.Contains(strings.ToLower(stdout), strings.ToLower(word)) {
				r.Errorf("doctor says nothing of %s: %s%s", word, stdout, stderr)
			}
		}
	})
}

func TestCompletion(t *testing.T) {
	each(t, func(r rig) {
		for _, shell := range []string{"bash", "zsh", "fish"} {
			if out := r.mustBerth("completion", shell); !strings.Contains(out, "berth") {
				r.Errorf("completion for %s: %q", shell, out)
			}
		}
	})
}
