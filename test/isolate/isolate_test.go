package isolate

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// guest makes the test binary a program that runs isolated.
const guest = "ISOLATE_TEST_GUEST"

func TestMain(m *testing.M) {
	how := os.Getenv(guest)
	if how == "" {
		os.Exit(m.Run())
	}
	var setup []func(string) error
	if how == "setup" {
		setup = append(setup, rename)
	}
	inside, err := Enter(setup...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if inside {
		os.Exit(visit(how))
	}
}

// rename gives the thread a host name of its own.
func rename(string) error {
	return errors.Join(unix.Unshare(unix.CLONE_NEWUTS), unix.Sethostname([]byte("renamed")))
}

// visit says what it looks like from within, and leaves an orphan behind.
func visit(how string) int {
	links, _ := net.Interfaces()
	for _, l := range links {
		fmt.Println("link", l.Name, l.Flags&net.FlagUp != 0)
	}
	fmt.Println("parent", os.Getppid())
	if how == "setup" {
		name, err := os.Hostname()
		fmt.Println(name, err)
		return 0
	}
	run, _ := os.ReadDir("/run")
	fmt.Println("run", len(run))
	orphan := exec.Command("sh", "-c", "sleep 1006 & echo $! > /run/pid")
	if err := orphan.Run(); err != nil {
		fmt.Println("orphan", err)
	}
	if _, err := os.Stat("/run/pid"); err != nil {
		fmt.Println(err)
	}
	if how == "fail" {
		fmt.Fprintln(os.Stderr, "it went wrong")
		return 1
	}
	return 0
}

func send(t *testing.T, how string) (string, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), guest+"="+how)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestIsEmptyAndLeavesNothing(t *testing.T) {
	mounts := furniture(t)
	out, err := send(t, "well")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := "link lo true\nparent 1\nrun 0\n"; out != want {
		t.Errorf("inside it looks like\n%swant\n%s", out, want)
	}
	if after := furniture(t); after != mounts {
		t.Errorf("mounts outside changed from\n%s\nto\n%s", mounts, after)
	}
	if left, _ := exec.Command("pgrep", "-x", "-f", "sleep 1006").Output(); len(left) != 0 {
		t.Errorf("an orphan outlives it: %s", left)
	}
}

// TestSetupIsInherited has the program start in the namespaces that a setup has made, and nobody outside.
func TestSetupIsInherited(t *testing.T) {
	before, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	out, err := send(t, "setup")
	if err != nil || !strings.HasSuffix(out, "\nrenamed <nil>\n") {
		t.Errorf("%v: %s", err, out)
	}
	if after, err := os.Hostname(); err != nil || after != before {
		t.Errorf("outside the host is called %s, and was %s: %v", after, before, err)
	}
}

// TestSweep removes the folder of a program that was killed, and none that is in use.
func TestSweep(t *testing.T) {
	mine := fmt.Sprintf("sweep-%d", os.Getpid())
	var dirs []string
	for range 2 {
		dir, err := os.MkdirTemp("/var/tmp", "cb-")
		if err == nil {
			err = os.WriteFile(dir+"/"+mine, nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		dirs = append(dirs, dir)
	}
	lock, err := hold(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	var cleaned []string
	if err := Sweep(mine, func(dir string) error { cleaned = append(cleaned, dir); return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(cleaned, dirs[1:]) {
		t.Errorf("cleaned up after %q, wanted %q", cleaned, dirs[1:])
	}
	_, kept := os.Stat(dirs[0])
	if _, err := os.Stat(dirs[1]); err == nil || kept != nil {
		t.Errorf("the folder of the one that was killed: %v; the other: %v", err, kept)
	}
}

func TestAFailureInsideIsAFailureOutside(t *testing.T) {
	out, err := send(t, "fail")
	if err == nil {
		t.Error("the program failed inside and not outside")
	}
	if !strings.Contains(out, "it went wrong") {
		t.Errorf("the reason is lost: %q", out)
	}
}

// furniture is what is mounted, outside, on the places where isolated programs have mounts of their own. Elsewhere
// other tests may mount meanwhile.
func furniture(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found strings.Builder
	places := []string{"/proc", "/run", "/var/lib"}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 && slices.Contains(places, fields[4]) {
			found.WriteString(line)
		}
	}
	return found.String()
}
