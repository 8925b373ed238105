package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

func TestLogLines(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		for _, c := range []struct{ name, script, stdout, stderr string }{
			{"both", "echo a; echo b >&2; echo c", "a\nc\n", "b\n"},
			{"empty-lines", "echo; echo; echo x", "\n\nx\n", ""},
			{"no-newline", "printf end", "end", ""},
			{"binary", `printf '\000\001\377\n'`, "\x00\x01\xff\n", ""},
			{"nothing", "true", "", ""},
		} {
			ctr := p.start(busybox(c.name, c.script))
			ctr.finish()
			r.wantText(c.name+" stdout", ctr.text("stdout"), c.stdout)
			r.wantText(c.name+" stderr", ctr.text("stderr"), c.stderr)
		}
	})
}

// TestLongLines checks that a long line is split into parts that the kubelet puts together, and that the parts of one
// line are neither torn nor mixed.
func TestLongLines(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		for _, length := range []int{16383, 16384, 16385, 100000} {
			c := p.start(webapp(fmt.Sprintf("long-%d", length), fmt.Sprintf("lines 3 %d", length)))
			c.finish()
			lines, err := node.ReadLog(c.log)
			r.ok(err)
			full := 0
			for _, l := range lines {
				if len(l.Text) > 16384 {
					r.Errorf("%d: a part has %d bytes", length, len(l.Text))
				}
				if l.Full {
					full++
				}
			}
			want := ""
			for i := range 3 {
				want += strings.Repeat(string(rune('a'+i)), length) + "\n"
			}
			if full != 3 || node.Text(lines, "stdout") != want {
				r.Errorf("%d: %d full lines, and text of %d bytes instead of %d", length, full, len(node.Text(lines, "stdout")),
					len(want))
			}
		}
	})
}

func TestManyLines(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(webapp("many", "lines 50000 60"))
		c.finish()
		lines, err := node.ReadLog(c.log)
		r.ok(err)
		if len(lines) != 50000 {
			r.Errorf("%d lines, wanted 50000", len(lines))
		}
		for i := 1; i < len(lines); i++ {
			if lines[i].Time.Before(lines[i-1].Time) {
				r.Fatalf("line %d is older than the one before it", i)
			}
		}
	})
}

// TestLogRotation moves the log away while the container writes, as the kubelet does. No line may be lost or doubled.
func TestLogRotation(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(webapp("main", "count 1ms 1000000"))
		var rotated []string
		for i := range 3 {
			c.logged("tick")
			time.Sleep(30 * time.Millisecond)
			old := fmt.Sprintf("%s.%d", c.log, i)
			r.ok(os.Rename(c.log, old))
			r.ok(r.n.Runtime.ReopenContainerLog(ctx(), c.cid))
			rotated = append(rotated, old)
		}
		c.logged("tick")
		r.ok(r.n.Runtime.StopContainer(ctx(), c.cid, seconds(60)))
		if st := c.status(); st.ExitCode != 42 {
			r.Errorf("exit code %d", st.ExitCode)
		}
		all := ""
		for _, path := range append(rotated, c.log) {
			lines, err := node.ReadLog(path)
			r.ok(err)
			all += node.Text(lines, "stdout")
		}
		r.wantText("log", all, ticks(strings.Count(all, "tick"))+"bye")
	})
}

// ticks is what `webapp count` prints when it counts to n.
func ticks(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "tick %d\n", i)
	}
	return b.String()
}

func TestReopenOfWhatDoesNotRun(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "true"))
		c.finish()
		r.ok(os.Rename(c.log, c.log+".old"))
		if err := r.n.Runtime.ReopenContainerLog(ctx(), c.cid); err == nil {
			r.Error("the log of a container that exited was reopened")
		}
		if _, err := os.Stat(c.log); err == nil {
			r.Error("a new log file appeared although ReopenContainerLog failed")
		}
	})
}

func TestLogPaths(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		for _, path := range []string{"../outside.log", "/../../outside.log", "a/../../outside.log"} {
			config := busybox("main", "true", func(c *v1.ContainerConfig) { c.LogPath = path })
			_, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config)
			r.wantCode(err, codes.InvalidArgument, "log")
		}
		outside := filepath.Join(filepath.Dir(p.config.LogDirectory), "outside.log")
		if _, err := os.Stat(outside); err == nil {
			r.Error("a log was written outside the pod's log directory")
		}
		st := p.start(busybox("silent", "echo unheard", func(c *v1.ContainerConfig) { c.LogPath = "" })).finish()
		if st.ExitCode != 0 {
			r.Errorf("without a log, the exit code is %d", st.ExitCode)
		}
	})
}

// TestLogThroughSymlink checks that a link in the log directory does not lead the monitor out of it.
func TestLogThroughSymlink(t *testing.T) {
	each(t, func(r rig) {
		p := r.pod()
		target := r.TempDir()
		r.ok(os.MkdirAll(p.config.LogDirectory, 0o755))
		r.ok(os.Symlink(target, filepath.Join(p.config.LogDirectory, "link")))
		config := busybox("main", "echo leaked", func(c *v1.ContainerConfig) { c.LogPath = "link/0.log" })
		if id, err := r.n.Runtime.CreateContainer(ctx(), p.id, config, p.config); err == nil {
			_ = r.n.Runtime.StartContainer(ctx(), id)
		}
		if data, err := os.ReadFile(filepath.Join(target, "0.log")); err == nil {
			r.Errorf("a log was written through a symlink: %q", data)
		}
	})
}

func TestTerminalLog(t *testing.T) {
	each(t, func(r rig) {
		c := r.pod().start(busybox("main", "echo one; echo two >&2", func(c *v1.ContainerConfig) { c.Tty = true }))
		c.finish()
		got := strings.ReplaceAll(c.text("stdout"), "\r", "")
		r.wantText("stdout", got, "one\ntwo\n")
	})
}
