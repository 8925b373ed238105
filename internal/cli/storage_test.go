package cli

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/config"
)

// TestStorageDiagnosis looks at a file system that has no quota, with handlers that want one.
func TestStorageDiagnosis(t *testing.T) {
	dir := t.TempDir()
	if os.Geteuid() != 0 || unix.Mount("tmpfs", dir, "tmpfs", 0, "") != nil {
		t.Skip("needs root")
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	for name, c := range map[string]struct {
		handlers map[string]config.Handler
		result   string
		says     []string
	}{
		"nobody asks": {nil, fine, []string{"no quota of projects", "only watched"}},
		"watched": {map[string]config.Handler{"a": {StorageSize: 1 << 30}, "b": {StorageInodes: 100}, "c": {}}, warning,
			[]string{"handlers a, b", "prjquota", "tune2fs"}},
		"refused": {map[string]config.Handler{"a": {StorageWithoutQuota: config.StorageRefuse}}, warning,
			[]string{"handlers a they are refused", "prjquota"}},
	} {
		cfg := config.Default()
		cfg.Root, cfg.Runtimes.Handlers = dir+"/not-there-yet", c.handlers
		d := diagnoseStorage(cfg)
		if d.Result != c.result || (d.Result == fine) != (d.Remedy == "") {
			t.Errorf("%s: %+v", name, d)
		}
		for _, word := range c.says {
			if !strings.Contains(d.Text+d.Remedy, word) {
				t.Errorf("%s: %q is not in %+v", name, word, d)
			}
		}
	}
}

// TestDoctorTellsOfLogLimits has doctor say whether any handler limits logs.
func TestDoctorTellsOfLogLimits(t *testing.T) {
	for want, handlers := range map[string]map[string]config.Handler{
		"no runtime handler limits": {"a": {Path: "/bin/true"}},
		"handlers b, c what": {
			"a": {Path: "/bin/true"}, "b": {Path: "/bin/true", LogRate: 1000}, "c": {Path: "/bin/true", LogRate: 2000},
		},
	} {
		cfg := config.Default()
		cfg.Runtimes.Handlers = handlers
		if d := diagnoseLogs(cfg); d.Result != fine || !strings.Contains(d.Text, want) || d.Remedy != "" {
			t.Errorf("%q is not what it says: %+v", want, d)
		}
	}
	if found := doctor(t, startDaemon(t))["log limits"]; len(found) != 1 {
		t.Errorf("doctor says %+v", found)
	}
}
