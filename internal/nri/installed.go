package nri

import (
	"errors"
	"io/fs"
	"math"
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
	return errors.Join(limit.CheckFiles(plugins, executable, program),
		limit.CheckFiles(configs, config, limit.LibraryFile))
}
