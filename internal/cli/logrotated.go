package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// rotatedName is what a kubelet appends to the name of a log that it rotates: the time, and .gz once it is compressed.
var rotatedName = regexp.MustCompile(`^\.(\d{8}-\d{6})(\.gz)?$`)

// rotatedLogs are the logs that a kubelet has rotated away from a path, by the time in their names: the file, or nil
// where it is compressed, which makes it another one.
func rotatedLogs(path string) map[string]os.FileInfo {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil
	}
	all := map[string]os.FileInfo{}
	for _, e := range entries {
		rest, _ := strings.CutPrefix(e.Name(), filepath.Base(path))
		m := rotatedName.FindStringSubmatch(rest)
		if m == nil {
			continue
		}
		info, err := e.Info()
		if err != nil || m[2] != "" {
			info = nil
		}
		all[m[1]] = info
	}
	return all
}

// rotatedBefore notes which logs were rotated before the one that is open. They are not known where that is no longer
// the current one.
func (r *logReader) rotatedBefore() {
	r.rotated = nil
	all := rotatedLogs(r.path)
	now, err := os.Stat(r.path)
	old, oldErr := r.file.Stat()
	if err == nil && oldErr == nil && os.SameFile(old, now) {
		r.rotated = all
	}
}

// tellOfMissed says how many whole files came and went since the one that was read, as far as they are still there to
// be seen.
func (r *logReader) tellOfMissed(old os.FileInfo) error {
	if r.rotated == nil {
		return nil
	}
	missed, own, compressed := 0, false, false
	for at, info := range rotatedLogs(r.path) {
		if _, was := r.rotated[at]; was {
			continue
		}
		missed++
		own = own || info != nil && os.SameFile(info, old)
		compressed = compressed || info == nil
	}
	if own || compressed { // the one that was read is among them, or may be
		missed--
	}
	if missed > 0 {
		r.note("it was rotated several times at once: the lines of %d files are missing here", missed)
		return r.gap("it was rotated several times")
	}
	return nil
}
