package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is also the program that holds a user namespace.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "hold" {
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	os.Exit(m.Run())
}

// stateDir is a directory as Debian has it for a daemon's state: who is root in a user namespace only passes through,
// and no program is started from it.
func stateDir(t *testing.T) string {
	t.Helper()
	run := t.TempDir()
	if err := os.Chmod(filepath.Dir(run), 0o711); err != nil {
		t.Fatal(err)
	}
	const flags = unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("none", run, "tmpfs", flags, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(run, 0); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(run, "berth")
	if err := os.Mkdir(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTryUserns(t *testing.T) {
	run := runner(t)
	facts, err := Probe()
	if err != nil {
		t.Fatal(err)
	}
	dir := stateDir(t)
	tried := 0
	for _, name := range preferred {
		path, err := exec.LookPath(name)
		if err != nil || !TryRuntime(t.Context(), Runtime{Path: path}, dir, CgroupfsDriver, run).Works {
			continue
		}
		tried++
		if err := TryUserns(t.Context(), Runtime{Path: path}, dir, CgroupfsDriver, "/proc/self/exe", run); err != nil {
			t.Errorf("%s on %s: %v", name, facts.Kernel, err)
		}
	}
	if tried == 0 {
		t.Skip("no runtime works here")
	}
	bad := script(t, t.TempDir()+"/bad", `case "$*" in *create*) echo no >&2; exit 1;; esac`)
	if err := TryUserns(t.Context(), Runtime{Path: bad}, dir, CgroupfsDriver, "/proc/self/exe", run); err == nil {
		t.Error("a runtime that refuses is taken for one that can")
	}
	if err := TryUserns(t.Context(), Runtime{Path: bad}, dir, CgroupfsDriver, "/no/such", run); err == nil {
		t.Error("tried without a user namespace")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestUsernsRuntimes keeps what works, tries again what does not, and what has changed.
func TestUsernsRuntimes(t *testing.T) {
	dir := t.TempDir()
	good, bad := script(t, dir+"/good", "exit"), script(t, dir+"/bad", "exit")
	found := []Runtime{{Name: "good", Path: good}, {Name: "bad", Path: bad}, {Name: "gone", Path: dir + "/gone"}}
	facts, asked := Facts{Kernel: "1"}, ""
	var told []string
	ask := func() map[string]error {
		t.Helper()
		asked, told = "", nil
		all, err := UsernsRuntimes(t.Context(), dir+"/cache/features", facts, found,
			func(_ context.Context, r Runtime) error {
				asked += filepath.Base(r.Path) + " "
				if r.Path == bad {
					return errors.New("no")
				}
				return nil
			}, func(name string, why error) { told = append(told, fmt.Sprintf("%s %t", name, why == nil)) })
		if err != nil {
			t.Fatal(err)
		}
		if all["good"] != nil || all["bad"] == nil || all["gone"] == nil {
			t.Errorf("%v", all)
		}
		return all
	}
	for _, want := range []string{"good bad [gone false good true bad false]", "bad [good true gone false bad false]"} {
		if ask(); asked+fmt.Sprint(told) != want {
			t.Errorf("asked, and was told: %s%s, wanted %s", asked, told, want)
		}
	}
	facts.Kernel = "2"
	if ask(); asked != "good bad " {
		t.Errorf("with another kernel asked %q", asked)
	}
	if err := os.WriteFile(dir+"/cache/features", []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ask(); asked != "good bad " {
		t.Errorf("with a torn cache asked %q", asked)
	}
}
