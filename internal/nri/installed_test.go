package nri

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/limit"
)

// What the adaptation would open and wait for is refused and named; programs may be large.
func TestInstalledThatAreNoFiles(t *testing.T) {
	for name, c := range map[string]struct{ fifo, wrong string }{
		"not read":             {"conf/README", ""},
		"not executed":         {"d/README", ""},
		"program":              {"d/10-a", "d/10-a"},
		"configuration":        {"conf/10-a.conf", "conf/10-a.conf"},
		"configuration of all": {"conf/a.conf", "conf/a.conf"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			mkdir(t, at("d"))
			mkdir(t, at("conf"))
			write(t, at("d/20-b"))
			mode := map[bool]uint32{true: 0o644, false: 0o755}[c.wrong == ""]
			if err := errors.Join(unix.Mkfifo(at(c.fifo), mode), os.Truncate(at("d/20-b"), 8<<20)); err != nil {
				t.Fatal(err)
			}
			err := checkInstalled(at("d"), at("conf"))
			if c.wrong == "" && err == nil {
				return
			}
			if !errors.Is(err, limit.ErrNotRegular) || !strings.Contains(err.Error(), at(c.wrong)) {
				t.Error(err)
			}
		})
	}
	if err := checkInstalled("/nowhere", ""); err != nil {
		t.Errorf("no directory: %v", err)
	}
}
