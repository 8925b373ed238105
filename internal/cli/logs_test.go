package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// logAt writes a log whose lines are a second apart.
func logAt(t *testing.T, path string, begin time.Time, lines ...string) {
	t.Helper()
	var text strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&text, "%s %s\n", begin.Add(time.Duration(i)*time.Second).Format(time.RFC3339Nano), line)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestLogsOfATime(t *testing.T) {
	d := populated(t)
	path := filepath.Join(d.dir, "log")
	logAt(t, path, time.Now().Add(-time.Hour), "stdout F a", "stdout P b", "stdout F c", "stdout F d")
	d.containers[2].LogPath = path
	at := func(n int) string { // half a second before line n
		return time.Now().Add(-time.Hour + time.Duration(n)*time.Second - 500*time.Millisecond).Format(time.RFC3339Nano)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--since", "2h"}, "a\nbc\nd\n"}, {[]string{"--since", "10m"}, ""}, {[]string{"--until", "10m"},
			"a\nbc\nd\n"},
		{[]string{"--until", "2h"}, ""}, {[]string{"--since", at(1), "--until", at(3)}, "bc\n"}, {[]string{"--since", at(3)},
			"d\n"},
		{[]string{"-n", "2"}, "bc\nd\n"}, {[]string{"-n", "2", "--until", at(3)}, "bc\n"},
	} {
		out, errs, code := d.berth(t, append([]string{"logs", "postgres"}, c.args...)...)
		if out != c.want || code != 0 {
			t.Errorf("%v: code %d, %q %q, want %q", c.args, code, out, errs, c.want)
		}
	}
	if _, errs, code := d.berth(t, "logs", "--since", "noon", "postgres"); code != 2 || !strings.Contains(errs,
		"is no time") {
		t.Errorf("code %d, %q", code, errs)
	}
	began := time.Now() // one who follows is done when the time has come, though the container runs on
	out, _, code := d.berth(t, "logs", "-f", "--until", began.Add(300*time.Millisecond).Format(time.RFC3339Nano),
		"postgres")
	if took := time.Since(began); out != "a\nbc\nd\n" || code != 0 || took < 300*time.Millisecond {
		t.Errorf("after %v: code %d, %q", took, code, out)
	}
}

// TestLogsOfAPod has two containers of a pod, of which one was started again, and one whose name would move a cursor.
func TestLogsOfAPod(t *testing.T) {
	d := populated(t)
	for i, c := range d.containers {
		c.LogPath = filepath.Join(d.dir, c.Id)
		logAt(t, c.LogPath, time.Now(), fmt.Sprintf("stdout P %d-", i), "stdout F end", "stderr F oops")
	}
	d.containers[3].Metadata.Name = "side\x1b[2J"
	for args, want := range map[string]string{
		"db":                       "side\\u001b[2J 3-end\npostgres 2-end\n",
		"web":                      "1-end\n", // one container, in its last attempt
		"nginx":                    "1-end\n",
		"-p nginx":                 "0-end\n",
		"--previous web":           "0-end\n",
		"--all-containers db -n 1": "side\\u001b[2J 3-end\npostgres 2-end\n",
		"--all-containers prod/db": "side\\u001b[2J 3-end\npostgres 2-end\n",
	} {
		out, errs, code := d.berth(t, append([]string{"logs"}, strings.Fields(args)...)...)
		if args == "--all-containers db -n 1" {
			want = "" // the last line of each is on the other stream
		}
		if out != want || code != 0 {
			t.Errorf("%s: code %d, %q %q, want %q", args, code, out, errs, want)
		}
	}
	if _, errs, code := d.berth(t, "logs", "-p", "postgres"); code != 3 || !strings.Contains(errs, "no container before") {
		t.Errorf("code %d, %q", code, errs)
	}
	for _, c := range d.containers {
		c.State = runtimeapi.ContainerState_CONTAINER_EXITED
	}
	out, errs, code := d.berth(t, "logs", "-f", "db") // at once, in whatever order
	if code != 0 || !strings.Contains(out, "postgres 2-end\n") || !strings.Contains(out, "[2J 3-end\n") ||
		strings.Count(errs, "oops\n") != 2 {
		t.Errorf("-f: code %d, %q %q", code, out, errs)
	}
}

// TestLogLinesOfOthersStayApart has partial lines of which the end never comes.
func TestLogLinesOfOthersStayApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	logAt(t, path, time.Now(), "stdout P a", "stderr F b", "stdout P c")
	var out, errs strings.Builder
	r := &logReader{path: path, out: &out, err: &errs, tail: -1, prefix: "x "}
	if err := r.copy(t.Context()); err != nil || out.String() != "x ac\n" || errs.String() != "x b\n" {
		t.Errorf("%v, %q %q", err, out.String(), errs.String())
	}
}
