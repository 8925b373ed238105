package host

import (
	"bufio"
	"compress/gzip"
	"crypto/md5" // dpkg keeps no other sum
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Bounds of what is read of a package: its own files are root's, and may be broken.
const (
	mostChangelog = 8 << 20
	mostList      = 16 << 20
)

var cveID = regexp.MustCompile(`CVE-[0-9]{4}-[0-9]{4,7}`)

// backports are fixes of packages whose changelog may not be there, as on nodes whose images have no documentation. The
// sources are the changelogs themselves.
var backports = []struct {
	pkg, version string // all versions that begin so
	ids          []string
}{
	// The upload of 2024-02-02 to bookworm-security.
	{"runc", "1.1.5+ds1-1+deb12u", []string{"CVE-2024-21626"}},
}

// mended are the CVEs that the package of a file says to have fixed. There is none where the file is not of a package
// of dpkg, or was replaced: what was built by hand has the fixes of its version. root is "/", but for tests.
func mended(root, path string) []string {
	pkg := packageOf(root, path)
	if pkg == "" || !asPacked(root, pkg, path) {
		return nil
	}
	name, _, _ := strings.Cut(pkg, ":")
	var ids []string
	version := packageVersion(root, name)
	for _, b := range backports {
		if b.pkg == name && strings.HasPrefix(version, b.version) {
			ids = append(ids, b.ids...)
		}
	}
	f, err := os.Open(filepath.Join(root, "usr/share/doc", name, "changelog.Debian.gz"))
	if err != nil {
		return ids
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return ids
	}
	text, err := io.ReadAll(io.LimitReader(z, mostChangelog))
	if err != nil {
		return ids
	}
	ids = append(ids, cveID.FindAllString(string(text), -1)...)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// packageOf is the package of dpkg that brought a file, with its architecture where dpkg says that; "" where none did.
func packageOf(root, path string) string {
	lists, err := filepath.Glob(filepath.Join(root, "var/lib/dpkg/info/*.list"))
	if err != nil {
		return ""
	}
	for _, list := range lists {
		if hasLine(list, func(line string) bool { return slices.Contains(spellings(path), line) }) {
			return strings.TrimSuffix(filepath.Base(list), ".list")
		}
	}
	return ""
}

// spellings are the names of a file before and after the merge of /usr.
func spellings(path string) []string {
	if short, is := strings.CutPrefix(path, "/usr/"); is {
		return []string{path, "/" + short}
	}
	return []string{path, "/usr" + path}
}

// asPacked reports whether a file is what its package brought.
func asPacked(root, pkg, path string) bool {
	f, err := os.Open(filepath.Join(root, path))
	if err != nil {
		return false
	}
	defer f.Close()
	sum := md5.New()
	if _, err := io.Copy(sum, f); err != nil {
		return false
	}
	want := hex.EncodeToString(sum.Sum(nil))
	return hasLine(filepath.Join(root, "var/lib/dpkg/info", pkg+".md5sums"), func(line string) bool {
		got, name, _ := strings.Cut(line, "  ")
		return got == want && slices.Contains(spellings(path), "/"+name)
	})
}

// packageVersion is the version of a package that is installed; "" where dpkg does not say.
func packageVersion(root, name string) (version string) {
	in := false
	hasLine(filepath.Join(root, "var/lib/dpkg/status"), func(line string) bool {
		if pkg, is := strings.CutPrefix(line, "Package: "); is {
			in = pkg == name
		}
		if v, is := strings.CutPrefix(line, "Version: "); is && in {
			version = v
			return true
		}
		return false
	})
	return version
}

// hasLine reports whether a line of a file is wanted. It reads no further than that.
func hasLine(path string, wanted func(string) bool) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(io.LimitReader(f, mostList)); lines.Scan(); {
		if wanted(lines.Text()) {
			return true
		}
	}
	return false
}
