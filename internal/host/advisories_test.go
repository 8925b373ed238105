package host

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestHoles(t *testing.T) {
	late := []string{"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}
	for _, c := range []struct {
		program, version string
		mended, want     []string
	}{
		{"runc", "1.0.0-rc6", nil, append([]string{"CVE-2019-5736", "CVE-2021-30465"}, late...)},
		{"runc", "1.0.0-rc93", nil, append([]string{"CVE-2021-30465", "CVE-2024-21626"}, late...)},
		{"runc", "1.0.0-rc95", nil, append([]string{"CVE-2024-21626"}, late...)},
		{"runc", "1.1.5+ds1", nil, append([]string{"CVE-2024-21626"}, late...)},
		{"runc", "1.1.5+ds1", []string{"CVE-2024-21626"}, late},
		{"runc", "1.1.12", nil, late},
		{"runc", "1.2.7", nil, late},
		{"runc", "1.2.8", nil, nil},
		{"runc", "1.2.9-0ubuntu1~24.04", nil, nil},
		{"runc", "1.3.0-rc.1", nil, late}, // later than 1.2.8 by number, not by its fixes
		{"runc", "1.3.2", nil, late},
		{"runc", "1.3.3-0ubuntu1~24.04.2", nil, nil},
		{"runc", "1.4.0-rc.1", nil, late},
		{"runc", "1.4.0", nil, nil},
		{"runc", "1.5.2", nil, nil},
		{"runc", "v2.0.0-dev", nil, nil},
		{"crun", "0.10.4", nil, []string{"CVE-2019-18837", "CVE-2026-88264", "CVE-2026-88265"}},
		{"crun", "1.8.1", nil, []string{"CVE-2026-88264", "CVE-2026-88265"}},
		{"crun", "1.29", nil, []string{"CVE-2026-88264", "CVE-2026-88265"}},
		{"crun", "1.30", nil, nil},
		{"crun", "1.30.0.0.0.5-dirty", nil, nil},
		{"crun", "UNKNOWN", nil, nil},
		{"crun", "", nil, nil},
		{"youki", "0.0.1", nil, nil},
	} {
		var got []string
		for _, a := range (Runtime{Program: c.program, Version: c.version, Mended: c.mended}).Holes() {
			got = append(got, a.ID)
			if a.Source == "" || a.Date == "" {
				t.Errorf("%s has no source or no date", a.ID)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s %s with %v: %v, want %v", c.program, c.version, c.mended, got, c.want)
		}
	}
}

// TestMended has the database of dpkg in a directory.
func TestMended(t *testing.T) {
	root := t.TempDir()
	write := func(path string, data []byte) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	program := []byte("program")
	sum := md5.Sum(program)
	write("usr/sbin/runc", program)
	write("var/lib/dpkg/info/runc.list", []byte("/.\n/usr\n/usr/sbin/runc\n"))
	write("var/lib/dpkg/info/runc.md5sums", []byte(hex.EncodeToString(sum[:])+"  usr/sbin/runc\n"))
	write("var/lib/dpkg/status", []byte("Package: abc\nVersion: 1\n\nPackage: runc\nVersion: 1.1.5+ds1-1+deb12u1\n"))
	same := func(path string, want ...string) {
		t.Helper()
		if got := mended(root, path); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	same("/usr/sbin/runc", "CVE-2024-21626") // without its changelog
	same("/usr/local/sbin/runc")
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte("runc (2) x\n  * CVE-2025-31133, CVE-2024-21626: y\n")); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	write("usr/share/doc/runc/changelog.Debian.gz", packed.Bytes())
	same("/usr/sbin/runc", "CVE-2024-21626", "CVE-2025-31133")
	write("usr/share/doc/runc/changelog.Debian.gz", packed.Bytes()[:20])
	same("/usr/sbin/runc", "CVE-2024-21626")
	write("var/lib/dpkg/status", []byte("Package: runc\nVersion: 1.1.5+ds1-1\n"))
	same("/usr/sbin/runc") // before the fix
	write("usr/sbin/runc", []byte("another"))
	write("usr/share/doc/runc/changelog.Debian.gz", packed.Bytes())
	same("/usr/sbin/runc") // somebody replaced it
}
