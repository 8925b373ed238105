package cli

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"berth/internal/config"
)

func TestGunzipDiagnosis(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("one processor")
	}
	with, without := t.TempDir(), t.TempDir()
	for _, name := range []string{"igzip", "prlimit"} {
		if err := os.WriteFile(filepath.Join(with, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ path, setting, result, says string }{
		{with, config.GunzipAuto, fine, "igzip inflates large gzip layers"},
		{without, config.GunzipAuto, fine, "package isal"},
		{with, config.GunzipNever, fine, "because images.gunzip says so"},
		{with, "/nonexistent/igzip", warning, "mend images.gunzip"},
		{with, with + "/igzip", fine, with + "/igzip inflates"},
		{without, with + "/igzip", warning, "prlimit"},
	} {
		t.Setenv("PATH", c.path)
		cfg := config.Default()
		cfg.Images.Gunzip = c.setting
		if d := (machine{config: cfg}).gunzip(); d.Result != c.result || !strings.Contains(d.Text+d.Remedy, c.says) {
			t.Errorf("%s with %s: %+v", c.setting, c.path, d)
		}
	}
}
