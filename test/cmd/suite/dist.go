package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// twoReleases makes a release of the last commit twice, in two places and with a compiler's cache of its own for one of
// them, and compares the digests.
func twoReleases(t *tally) {
	dir, err := os.MkdirTemp("", "bt-dist-")
	if err != nil {
		t.fail("two releases", err.Error())
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var sums []string
	for i, place := range []string{"one", "elsewhere/and-deeper"} {
		sum, err := release(filepath.Join(dir, place), filepath.Join(dir, "cache"), i > 0)
		if err != nil {
			t.fail("release in "+place, err.Error())
			return
		}
		sums = append(sums, sum)
	}
	if files := strings.Count(sums[0], "\n"); files < 10 { // for each architecture a tarball, a package and three lists
		t.fail("release", fmt.Sprintf("it has %d files:\n%s", files, sums[0]))
		return
	}
	if sums[0] != sums[1] {
		t.fail("two releases", "they differ:\n"+sums[0]+"\n"+sums[1])
		return
	}
	t.pass("two releases")
}

// release clones the repository to a place, makes a release there, and returns the digests of its files.
func release(place, cache string, fresh bool) (string, error) {
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return "", err
	}
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("git", "clone", "-q", here, place).CombinedOutput(); err != nil {
		return "", fmt.Errorf("git clone: %w\n%s", err, out)
	}
	tools := filepath.Join(place, "bin", "tools")
	if err := os.MkdirAll(filepath.Dir(tools), 0o755); err != nil {
		return "", err
	}
	if err := os.Symlink(filepath.Join(here, "bin", "tools"), tools); err != nil {
		return "", err
	}
	cmd := exec.Command("packaging/dist")
	cmd.Dir, cmd.Env = place, append(os.Environ(), "VERSION=v0.0.1")
	if fresh {
		cmd.Env = append(cmd.Env, "GOCACHE="+cache)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("packaging/dist: %w\n%s", err, out)
	}
	sums, err := os.ReadFile(filepath.Join(place, "bin", "dist", "SHA256SUMS"))
	return string(sums), err
}
