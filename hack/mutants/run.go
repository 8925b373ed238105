package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/hack/product"
)

// left are tests that do not belong to the unit tests: those that compare with other tools, or that are about cost.
const left = "^(TestCompare.*|TestAttacks|TestGrowth|TestHostileDocuments|TestManifestOfManyReplaced|" +
	"TestManyReplaced|TestRandomLayers|TestTarComesBack|TestLargeLayerNeedsNoMemory|TestImportRefuses|" +
	"TestConfigBounds|TestMemory.*)$"

// runner runs the unit tests against mutants.
type runner struct {
	root    string
	program *product.Program
	limits  map[string]time.Duration // of the tests of a package
}

// run runs the tests of a mutant's package, and of those beside it, until one fails, and returns which: "" where none
// does. The test that killed the mutant before goes first. One that fails once, and passes when it runs alone with the
// mutant, is passed over: on a busy machine some tests fail without a reason.
func (r *runner) run(s site, before string) (killer string, err error) {
	if strings.HasPrefix(before, "Test") {
		if killed, err := r.kills(s, before); err != nil || killed {
			return before, err
		}
	}
	for _, pkg := range testsFor(s.pkg.Path) {
		limit, err := r.limit(pkg)
		if err != nil {
			return "", err
		}
		for passedOver := left; ; {
			failed, err := r.test(pkg, &s, limit, "", passedOver)
			if err != nil || failed == "" {
				if err != nil {
					return "", err
				}
				break
			}
			if !strings.HasPrefix(failed, "Test") {
				return failed, nil
			}
			top, _, _ := strings.Cut(failed, "/")
			if killed, err := r.kills(s, top); err != nil || killed {
				return top, err
			}
			passedOver += "|^" + top + "$"
		}
	}
	return "", nil
}

// kills says whether a test fails with the mutant when it runs alone.
func (r *runner) kills(s site, test string) (bool, error) {
	for _, pkg := range testsFor(s.pkg.Path) {
		failed, err := r.test(pkg, &s, 5*time.Minute, "^"+test+"$", left)
		if err != nil || failed != "" {
			return failed != "", err
		}
	}
	return false, nil
}

// testsFor are the packages whose tests a mutant has to pass: its own first, then those of its room.
func testsFor(path string) []string {
	all := []string{path}
	for _, r := range rooms {
		if !r.holds(path) {
			continue
		}
		for _, pkg := range append([]string{r.home}, r.tests...) {
			if !slices.Contains(all, pkg) {
				all = append(all, pkg)
			}
		}
	}
	return all
}

// limit is how long the tests of a package may take: several times as long as without a mutant, which must pass. A
// mutant that takes longer counts as killed.
func (r *runner) limit(pkg string) (time.Duration, error) {
	if known, ok := r.limits[pkg]; ok {
		return known, nil
	}
	began := time.Now()
	failed, err := r.test(pkg, nil, 20*time.Minute, "", left)
	if err == nil && failed != "" {
		err = fmt.Errorf("%s fails without a mutant: %s", pkg, failed)
	}
	r.limits[pkg] = 30*time.Second + 3*time.Since(began)
	return r.limits[pkg], err
}

// test runs the tests of a package that match run, without those that match skip, with the mutant s where there is one,
// and returns which fails, "" where none does.
func (r *runner) test(pkg string, s *site, limit time.Duration, run, skip string) (failed string, err error) {
	if err := emptyTmp(); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("/tmp", "mutant-")
	if err != nil {
		return "", err
	}
	env := append(os.Environ(), "CGO_ENABLED=0", "TMPDIR=/tmp")
	if s != nil {
		overlay, err := writeOverlay(dir, r.root, *s)
		if err != nil {
			return "", err
		}
		env = append(env, "GOFLAGS=-overlay="+overlay) // for tests that build a program, too
	}
	binary := filepath.Join(dir, "tests")
	build := exec.Command("go", "test", "-c", "-vet=off", "-o", binary, "./"+pkg)
	build.Dir, build.Env = r.root, env
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the tests of %s: %w: %s", pkg, err, out)
	}
	if _, err := os.Stat(binary); errors.Is(err, os.ErrNotExist) {
		return "", nil // it has no tests
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tests := exec.CommandContext(ctx, binary, "-test.failfast", "-test.parallel=8", "-test.run="+run, "-test.skip="+skip)
	tests.Dir, tests.Env = filepath.Join(r.root, pkg), env
	tests.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	tests.Cancel = func() error { return syscall.Kill(-tests.Process.Pid, syscall.SIGKILL) }
	tests.WaitDelay = time.Second
	out, err := tests.CombinedOutput()
	if err := endOthers(); err != nil {
		return "", err
	}
	switch {
	case ctx.Err() != nil:
		return "it takes too long", nil
	case err != nil:
		return firstFailure(out), nil
	}
	return "", nil
}

// writeOverlay has the compiler see the mutant in place of the file that it is of.
func writeOverlay(dir, root string, s site) (string, error) {
	mutated := filepath.Join(dir, s.file.Name)
	if err := os.WriteFile(mutated, s.mutated(), 0o644); err != nil {
		return "", err
	}
	replace := map[string]string{filepath.Join(root, s.pkg.Path, s.file.Name): mutated}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, raw, 0o644)
}

var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^(panic: .{0,60}|fatal error: .{0,60})`)

// firstFailure finds the name of a test that failed in what the tests print.
func firstFailure(out []byte) string {
	if found := failure.FindSubmatch(out); found != nil {
		return string(found[1]) + string(found[2])
	}
	return "it ends with an error"
}
