package rules

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"berth/test/fixture"
)

// repositoryFiles calls f with the content of each file of the repository.
func repositoryFiles(t *testing.T, f func(path string, text []byte)) {
	t.Helper()
	root := fixture.Repo()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == ".git" || name == "bin" || name == filepath.Join("bench", ".peers")):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(name, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoFileIsHalfMerged looks for the marks that git leaves where two changes meet. A compiler finds them in code, and
// nobody in a script or a page.
func TestNoFileIsHalfMerged(t *testing.T) {
	marks := [][]byte{[]byte("\n<<<<" + "<<< "), []byte("\n>>>>" + ">>> ")}
	files := 0
	repositoryFiles(t, func(path string, text []byte) {
		files++
		for _, mark := range marks {
			if bytes.Contains(text, mark) {
				t.Errorf("%s has marks of a merge", path)
			}
		}
	})
	if files < 500 {
		t.Errorf("%d files were looked at", files)
	}
}

// TestScriptsAreShell has the shell read each script without executing it.
func TestScriptsAreShell(t *testing.T) {
	scripts := 0
	repositoryFiles(t, func(path string, text []byte) {
		if !bytes.HasPrefix(text, []byte("#!/bin/sh\n")) {
			return
		}
		scripts++
		if out, err := exec.Command("sh", "-n", filepath.Join(fixture.Repo(), path)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	})
	if scripts < 10 {
		t.Errorf("%d scripts were looked at", scripts)
	}
}
