package nri

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"berth/internal/limit"
)

// checkInstalled refuses programs and configurations of plugins that the adaptation must not open: it would wait for
// the writer of a FIFO for ever, and the daemon would not start. It reads no more of a program than its beginning.
func checkInstalled(plugins, configs string) error {
	program := limit.LibraryFile
	program.Limit = math.MaxInt64
	executable := func(e fs.DirEntry) bool {
		info, err := e.Info()
		return err == nil && info.Mode()&0o111 != 0
	}
	config := func(e fs.DirEntry) bool { return filepath.Ext(e.Name()) == ".conf" }
	return errors.Join(checkFiles(plugins, executable, program), checkFiles(configs, config, limit.LibraryFile))
}

// checkFiles checks the files of a directory that are opened. What cannot be looked at is the adaptation's to report.
func checkFiles(dir string, opened func(fs.DirEntry) bool, most limit.Budget) error {
	entries, _ := os.ReadDir(dir)
	var errs []error
	for _, e := range entries {
		if opened(e) {
			errs = append(errs, limit.CheckFile(filepath.Join(dir, e.Name()), most))
		}
	}
	return errors.Join(errs...)
}
