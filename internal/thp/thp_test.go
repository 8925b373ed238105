package thp

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain is also the program that TestShed runs: it sheds, and tells what it has then.
func TestMain(m *testing.M) {
	if os.Getenv("THP_TEST") == "shed" {
		Shed()
		_, _ = os.Stdout.WriteString(strings.Join(os.Args[1:], " ") + "\n" + own(nil))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// own is what the kernel says of this process's huge pages.
func own(t *testing.T) string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil && t != nil {
		t.Fatal(err)
	}
	return line(status)
}

func line(status []byte) string {
	for l := range bytes.Lines(status) {
		if bytes.HasPrefix(l, []byte("THP_enabled:")) {
			return strings.Join(strings.Fields(string(l)), " ")
		}
	}
	return ""
}

func TestWith(t *testing.T) {
	before := own(t)
	for _, on := range []bool{false, true, false} {
		var status []byte
		if err := With(on, func() (err error) { status, err = exec.Command("cat", "/proc/self/status").Output(); return err }); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "THP_enabled: 1", false: "THP_enabled: 0"}[on]
		if got := line(status); got != want {
			t.Errorf("on %v: the program has %q", on, got)
		}
		if after := own(t); after != before {
			t.Errorf("on %v: this process had %q and has %q", on, before, after)
		}
	}
}

func TestShed(t *testing.T) {
	who, err := os.ReadFile(enabled)
	if err != nil {
		t.Fatal(err)
	}
	want := "THP_enabled: 1"
	if strings.Contains(string(who), "[always]") {
		want = "THP_enabled: 0"
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "one", "two words")
	cmd.Env = []string{"THP_TEST=shed"}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "one two words\n"+want {
		t.Errorf("it says %q, %v; wanted %s", out, err, want)
	}
}
