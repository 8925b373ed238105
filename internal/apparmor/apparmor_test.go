package apparmor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
	if err := p.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "berth-default, ") ||
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

// fails makes the compiler fail until the function that it returns is called.
func fails(t *testing.T, p *Profiles) (mend func()) {
	t.Helper()
	good, err := os.ReadFile(p.parser)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text []byte) {
		if err := os.WriteFile(p.parser, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte("#!/bin/sh\necho 'no memory' >&2; exit 1\n"))
	return func() { write(good) }
}

// TestFailedOnce wants a profile that could not be loaded at first to be loaded for the next container, and each one
// until then refused.
func TestFailedOnce(t *testing.T) {
	p, loads := kernel(t, "")
	mend := fails(t, p)
	if err := p.Load(t.Context()); err == nil {
		t.Fatal("it was loaded")
	}
	if got := p.Default(); got != DefaultName {
		t.Errorf("a container is to have the profile %q", got)
	}
	if err := p.Ensure(t.Context(), DefaultName); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("a container without its profile: %v", err)
	}
	if s := p.Status(); s.Problem == nil || !strings.Contains(s.Problem.Error(), "no memory") {
		t.Errorf("status %+v", s)
	}
	mend()
	if err := p.Ensure(t.Context(), DefaultName); err != nil || loads() != 1 {
		t.Errorf("loaded %d times, %v", loads(), err)
	}
	if s := p.Status(); s != (Status{Profile: DefaultName}) {
		t.Errorf("status %+v", s)
	}
}

// TestParserComes wants containers to go without where nothing can compile a profile, until something can.
func TestParserComes(t *testing.T) {
	p, loads := kernel(t, "")
	if err := os.Rename(p.parser, p.parser+".later"); err != nil {
		t.Fatal(err)
	}
	if s := p.Status(); p.Default() != "" || s.Profile != "" || !errors.Is(s.Problem, ErrNoParser) {
		t.Errorf("%q, %+v", p.Default(), s)
	}
	if err := os.Rename(p.parser+".later", p.parser); err != nil {
		t.Fatal(err)
	}
	if s := p.Status(); p.Default() != DefaultName || s != (Status{Profile: DefaultName}) {
		t.Errorf("%q, %+v", p.Default(), s)
	}
	if err := p.Ensure(t.Context(), DefaultName); err != nil || loads() != 1 {
		t.Errorf("loaded %d times, %v", loads(), err)
	}
	if err := os.Remove(p.parser); err != nil {
		t.Fatal(err)
	}
	if err := p.Ensure(t.Context(), p.Default()); err != nil {
		t.Errorf("a profile that the kernel has needs no compiler: %v", err)
	}
	if err := os.Remove(p.list); err != nil { // a daemon that sees no securityfs can load nothing either
		t.Fatal(err)
	}
	if s := p.Status(); p.Default() != "" || s.Problem == nil || !strings.Contains(s.Problem.Error(), "securityfs") {
		t.Errorf("%q, %+v", p.Default(), s)
	}
}

// unreadable is a file that the kernel lets nobody read.
const unreadable = "/proc/sys/net/ipv4/route/flush"

// TestNothingToLoadWith wants containers to go without where a load can never succeed or the configuration wants none,
// and the first told.
func TestNothingToLoadWith(t *testing.T) {
	for name, c := range map[string]struct {
		without func(*Profiles)
		problem string // empty is none
	}{
		"a list that may not be read": {func(p *Profiles) { p.list = unreadable }, "does not show this daemon its"},
		"no CAP_MAC_ADMIN":            {func(p *Profiles) { p.NoAdmin = true }, "CAP_MAC_ADMIN"},
		"off":                         {func(p *Profiles) { p.Off = true }, ""},
	} {
		p, loads := kernel(t, "")
		c.without(p)
		s := p.Status()
		if p.Default() != "" || s.Profile != "" || (s.Problem == nil) != (c.problem == "") || loads() != 0 ||
			s.Problem != nil && !strings.Contains(s.Problem.Error(), c.problem) {
			t.Errorf("%s: %q, %+v", name, p.Default(), s)
		}
	}
	p, _ := kernel(t, "berth-default (enforce)\n") // somebody else may have loaded it
	if p.NoAdmin = true; p.Default() != DefaultName {
		t.Error("a profile that is loaded needs no capability")
	}
	if p.Off = true; p.Default() != "" {
		t.Error("off, and the kernel has it")
	}
}

// TestOtherText wants a container to run under the profile of another release where this one's cannot be loaded, which
// is tried again, but not for each container.
func TestOtherText(t *testing.T) {
	p, loads := kernel(t, "berth-default (enforce)\n")
	mend := fails(t, p)
	for range 2 {
		if err := p.Ensure(t.Context(), DefaultName); err != nil {
			t.Error(err)
		}
	}
	if s := p.Status(); s.Profile != DefaultName || s.Problem == nil {
		t.Errorf("status %+v", s)
	}
	mend()
	if err := p.Ensure(t.Context(), DefaultName); err != nil || loads() != 0 {
		t.Errorf("at once: %d, %v", loads(), err)
	}
	p.tried = time.Now().Add(-2 * retryStale)
	if err := p.Ensure(t.Context(), DefaultName); err != nil || loads() != 1 || p.Status().Problem != nil {
		t.Errorf("later: %d, %v, %+v", loads(), err, p.Status())
	}
}

// TestManyWaitForOneLoad wants containers to share a load, their own ends to end their waiting, and a load whose first
// caller has gone to be begun again.
func TestManyWaitForOneLoad(t *testing.T) { synctest.Test(t, manyWaitForOneLoad) }

func manyWaitForOneLoad(t *testing.T) {
	p, _ := kernel(t, "")
	var runs atomic.Int32
	began, fail := make(chan struct{}, 10), make(chan error)
	p.Run = func(ctx context.Context, _ string, _ *exec.Cmd) error {
		runs.Add(1)
		began <- struct{}{}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-fail:
			return err
		}
	}
	ended := make(chan error, 200)
	first, leave := context.WithCancel(t.Context())
	go func() { ended <- p.Ensure(first, DefaultName) }()
	<-began
	late, end := context.WithCancel(t.Context())
	go func() { ended <- p.Ensure(late, DefaultName) }()
	end()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
	for range 100 {
		go func() { ended <- p.Ensure(t.Context(), DefaultName) }()
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first caller: %v", err)
	}
	<-began
	synctest.Wait() // for the others to wait, too
	broken := errors.New("broken")
	fail <- broken
	for range 100 {
		if err := <-ended; !errors.Is(err, broken) {
			t.Errorf("one of many: %v", err)
		}
	}
	if got := runs.Load(); got != 2 {
		t.Errorf("%d loads", got)
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
