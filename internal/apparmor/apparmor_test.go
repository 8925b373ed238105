package apparmor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/host"
)

// run runs a helper as it is.
func run(_ context.Context, _ string, cmd *exec.Cmd) error { return cmd.Run() }

// kernel stands for one with AppArmor, which not every machine has: a list of profiles, and a compiler that adds the
// profile to it, and its text to the file loads. test/service tries the real ones.
func kernel(t *testing.T, list string) (p *Profiles, loads func() int) {
	t.Helper()
	dir := t.TempDir()
	p = &Profiles{State: dir, Run: run, Families: host.SocketFamilies(),
		list: filepath.Join(dir, "list"), parser: filepath.Join(dir, "parser")}
	script := "#!/bin/sh\ncat >>" + dir + "/loads\necho 'berth-default (enforce)' >>" + p.list + "\n"
	for path, text := range map[string]string{p.list: list, p.parser: script} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p, func() int {
		text, err := os.ReadFile(filepath.Join(dir, "loads"))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "profile berth-default flags=")
	}
}

func TestLoaded(t *testing.T) {
	p, _ := kernel(t, "/usr/bin/man (enforce)\nwith space (complain)\nouter//inner (enforce)\n")
	for name, want := range map[string]bool{"/usr/bin/man": true, "with space": true, "outer//inner": true, "with": false,
		"": false, "man": false} {
		if got, err := p.Loaded(name); got != want || err != nil {
			t.Errorf("%q: %v, %v", name, got, err)
		}
	}
	if err := os.Remove(p.list); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Loaded("man"); err == nil || !strings.Contains(err.Error(), "mount securityfs") {
		t.Errorf("without a list: %v", err)
	}
}

// TestLoad wants the profile loaded once, again when its text changed, and again when the kernel has lost it.
func TestLoad(t *testing.T) {
	p, loads := kernel(t, "other (enforce)\n")
	load := func(want int, when string) {
		t.Helper()
		if err := p.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := loads(); got != want {
			t.Errorf("%s: loaded %d times, want %d", when, got, want)
		}
	}
	load(1, "at first")
	load(1, "once more")
	if err := os.WriteFile(filepath.Join(p.State, "berth-default.apparmor"), []byte("an older text"), 0o600); err != nil {
		t.Fatal(err)
	}
	load(2, "with another text")
	if err := os.WriteFile(p.list, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	load(3, "in another boot")
}

func TestEnsure(t *testing.T) {
	p, loads := kernel(t, "mine (enforce)\n")
	for name, want := range map[string]string{"mine": "", DefaultName: "", "none": "is not loaded on this node"} {
		err := p.Ensure(t.Context(), name)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := loads(); got != 1 {
		t.Errorf("the default one was loaded %d times", got)
	}
}

func TestCannotLoad(t *testing.T) {
	p, _ := kernel(t, "")
	if err := os.WriteFile(p.parser, []byte("#!/bin/sh\necho 'syntax error' >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := p.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "berth-default: ") ||
		!strings.Contains(err.Error(), "syntax error") {
		t.Errorf("with a compiler that refuses: %v", err)
	}
	p.parser = ""
	t.Setenv("PATH", t.TempDir())
	if _, err := os.Stat("/usr/sbin/apparmor_parser"); err == nil {
		t.Skip("this machine has a compiler where it is looked for")
	}
	if err := p.Load(t.Context()); !errors.Is(err, ErrNoParser) {
		t.Errorf("without a compiler: %v", err)
	}
}

func TestLabel(t *testing.T) {
	for text, want := range map[string]string{
		"unconfined\n": "unconfined", "a profile (enforce)\n": "a profile", "x (complain)\x00": "x", "": "unconfined",
		"system_u:system_r:kernel_t:s0\x00": "unconfined",
	} {
		if got := label(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestCompiles gives the text to the real compiler, for a daemon under each kind of label.
func TestCompiles(t *testing.T) {
	parser, err := FindParser()
	if err != nil {
		t.Skip(err)
	}
	for _, daemon := range []string{"unconfined", "/usr/bin/berth", "a b", `odd"{name}`, "outer//inner"} {
		text, err := (&Profiles{Families: host.SocketFamilies()}).render(daemon)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(parser, "--replace", "--skip-kernel-load", "--skip-cache", "--quiet")
		cmd.Stdin = strings.NewReader(string(text))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("for a daemon under %s: %v\n%s\n%s", daemon, err, out, text)
		}
		if got := strings.Contains(string(text), "a b"); got != (daemon == "a b") {
			t.Errorf("for a daemon under %s:\n%s", daemon, text)
		}
	}
}
