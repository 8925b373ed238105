package main

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// emulator runs programs of arm64 one by one, on the kernel of this machine. It is not registered with that kernel,
// because a registration holds for the whole machine.
const emulator = "qemu-aarch64-static"

// registration is there where somebody has registered it all the same.
const registration = "/proc/sys/fs/binfmt_misc/qemu-aarch64"

//go:embed testdata/arm64.txt
var emulatedText string

// emulated is what is known of the unit tests under the emulator.
type emulated struct {
	left  map[string]string // packages that are not run, and single tests (package and name), and why
	tests map[string]string // that fail, and why, by package and test
}

// parseEmulated reads a list: "fails: " or "not run: " and a reason, and below it, indented, the tests or packages that
// it holds for. Lines that begin with # are comments.
func parseEmulated(text string) (emulated, error) {
	list := emulated{map[string]string{}, map[string]string{}}
	var into map[string]string
	var why string
	for n, line := range strings.Split(text, "\n") {
		name, indented := strings.CutPrefix(line, "\t")
		words, fails := strings.CutPrefix(line, "fails: ")
		other, whole := strings.CutPrefix(line, "not run: ")
		switch {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
		case fails && words != "":
			into, why = list.tests, words
		case whole && other != "":
			into, why = list.left, other
		case indented && into != nil && into[name] == "":
			into[name] = why
		default:
			return list, fmt.Errorf("line %d: %q is no reason, or an entry without a reason or twice", n+1, line)
		}
	}
	return list, nil
}

// runEmulated tests the packages of the product as programs of arm64. What fails is compared with the list: a test that
// fails and is not in it is a failure, and so is one that is in it and passes, is skipped or is gone.
func runEmulated(t *tally) {
	list, err := parseEmulated(emulatedText)
	if err != nil {
		t.fail("testdata/arm64.txt", err.Error())
		return
	}
	if _, err := exec.LookPath(emulator); err != nil {
		t.fail(emulator, "it is missing: make test-arm64 installs it")
		return
	}
	if _, err := os.Stat(registration); err == nil {
		t.fail(emulator, "it is registered with this machine's kernel, and the list says what happens where it is not: "+
			"`echo 0 >"+registration+"` turns that off until the next boot")
		return
	}
	out, err := exec.Command("go", "list", "./internal/...", "./cmd/...").Output()
	if err != nil {
		t.fail("go list", err.Error())
		return
	}
	for _, name := range []string{"GOARCH=arm64", "CGO_ENABLED=0"} {
		key, value, _ := strings.Cut(name, "=")
		before, was := os.LookupEnv(key)
		_ = os.Setenv(key, value)
		defer func() {
			if _ = os.Unsetenv(key); was {
				_ = os.Setenv(key, before)
			}
		}()
	}
	packages, gone := list.choose(strings.Fields(string(out)))
	for _, p := range gone {
		t.fail(p, "testdata/arm64.txt says that it is not run, and there is no such package")
	}
	for _, p := range slices.Sorted(maps.Keys(list.left)) {
		t.skip(p, list.left[p])
	}
	tryPrograms(t)
	t.known = maps.Clone(list.tests)
	defer func() { t.known = nil }()
	skip := comparisons("-skip") + "|" + costs
	for _, name := range slices.Sorted(maps.Keys(list.left)) {
		if _, test, single := strings.Cut(name, " "); single {
			skip += "|^" + test + "$"
		}
	}
	args := []string{"-count=1", "-timeout=5m", "-exec=" + emulator, skip}
	t.goTest(append(args, packages...)...)
	for _, name := range slices.Sorted(maps.Keys(t.known)) {
		t.fail(name, "testdata/arm64.txt says that it fails, and it is not there, or was not run")
	}
}

// choose returns the packages that are run, and what the list leaves out that is no package.
func (list emulated) choose(all []string) (run, gone []string) {
	for _, p := range all {
		if list.left[p] == "" {
			run = append(run, p)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(list.left)) {
		if pkg, _, _ := strings.Cut(p, " "); !slices.Contains(all, pkg) {
			gone = append(gone, p)
		}
	}
	return run, gone
}

// tryPrograms builds the programs for arm64 and starts each. The daemon is not among them: it ends at once, because
// QEMU has no clone3, by which the daemon would try a runtime, and leaves an empty cgroup.
func tryPrograms(t *tally) {
	dir, err := os.MkdirTemp("", "bt-arm64-")
	if err != nil {
		t.fail("programs", err.Error())
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, name := range []string{"berth", "berth-monitor", "berth-unpack"} {
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-X main.version=v0.0.1", "-o", dir+"/",
			"./cmd/"+name)
		if out, err := build.CombinedOutput(); err != nil {
			t.fail("build "+name, string(out)+err.Error())
			return
		}
	}
	const byHand = "is started by the Berth daemon, not by hand"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"berth", "--version"}, "berth version v0.0.1"},
		{[]string{"berth", "--help"}, "Run pods on this machine"},
		{[]string{"berth", "completion", "bash"}, "complete"},
		{[]string{"berth-monitor"}, byHand},
		{[]string{"berth-unpack"}, byHand},
	} {
		label := "arm64: " + strings.Join(c.args[:min(len(c.args), 2)], " ")
		cmd := exec.Command("timeout", append([]string{"60", emulator, dir + "/" + c.args[0]}, c.args[1:]...)...)
		if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), c.want) {
			t.fail(label, fmt.Sprintf("it says %q and not %q", out, c.want))
			continue
		}
		t.pass(label)
	}
}
