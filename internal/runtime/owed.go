package runtime

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"berth/internal/monitor/wire"
)

func owedDir(cfg *Config, pod, ctr string) string { return filepath.Join(cfg.dir(pod), wire.Owed, ctr) }

// keepOwed moves the journal of a container that is deleted, if its monitor still needs it, and the bundle, which says
// where the log is, to where they outlive the container's run directory. The monitor removes them when it has written
// what the log is owed; one that takes over does that for one that was killed. A failure is no reason to keep the
// container.
func keepOwed(cfg *Config, pod, ctr string) {
	if _, err := os.Lstat(filepath.Join(cfg.bundle(pod, ctr), journalFile)); err != nil {
		return
	}
	if err := moveOwed(cfg, pod, ctr); err != nil {
		cfg.Log.Warn("what the log of a container that has ended is still owed is lost if the pod's monitor dies",
			"pod", pod, "container", ctr, "error", err)
	}
}

// moveOwed moves the journal last: with that a monitor takes it up.
func moveOwed(cfg *Config, pod, ctr string) error {
	dir, owed := cfg.bundle(pod, ctr), owedDir(cfg, pod, ctr)
	if err := os.MkdirAll(owed, 0o700); err != nil {
		return err
	}
	err := os.Link(filepath.Join(dir, bundleFile), filepath.Join(owed, bundleFile))
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = os.Rename(filepath.Join(dir, journalFile), filepath.Join(owed, journalFile))
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) { // the monitor was done, or the container never began
		err = nil
	}
	return errors.Join(err, os.RemoveAll(owed))
}

// Logged reports whether nothing is owed to the log of a container of a live pod that has ended. state is Config.State.
// A monitor keeps the journal as long as something is; it moves from the one place to the other.
func Logged(state, pod, ctr string) bool {
	cfg := &Config{State: state}
	for _, dir := range []string{cfg.bundle(pod, ctr), owedDir(cfg, pod, ctr)} {
		if _, err := os.Lstat(filepath.Join(dir, journalFile)); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	_, err := os.Lstat(cfg.dir(pod)) // with it the journals go, too
	return err == nil
}
