package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"berth/test/volume"
)

// How large the disks of a run are, in MiB: small, so that they are filled in a moment.
const (
	recordsMiB = 384
	logsMiB    = 48
)

// mountDisks has the runtime's root and the logs of pods each on a small file system.
func (s *stage) mountDisks() error {
	if err := volume.Ext4.Available(); err != nil {
		return err
	}
	for at, mib := range map[string]int{s.root: recordsMiB, s.logs: logsMiB} {
		dir := at + ".disk"
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		v, err := volume.Make(dir, volume.Ext4, mib, "-m", "0")
		if err != nil {
			return err
		}
		if err := v.Mount(at); err != nil {
			return err
		}
		s.volumes = append(s.volumes, v)
	}
	return nil
}

func (k *striker) disk(name string) string {
	if name == "logs" {
		return k.s.logs
	}
	return k.s.root
}

// strikeDisk has a disk hang or be full for a while. Of each there is one thing at a time.
func (k *striker) strikeDisk(p plan) bool {
	if _, busy := k.busy.LoadOrStore(p.disk, true); busy {
		return false
	}
	at := k.disk(p.disk)
	undo, err := k.fill, error(nil)
	if p.verb == "freeze" {
		undo = k.freeze
	}
	back, err := undo(at)
	if err != nil {
		k.s.report.say("%s: %v", p, err)
		k.busy.Delete(p.disk)
		return false
	}
	if k.s.Verbose {
		k.s.report.say("%s for %s", p, p.lasts)
	}
	k.later(p.lasts, func() {
		if err := back(); err != nil {
			k.s.report.say("undo %s: %v", p, err)
		}
		k.busy.Delete(p.disk)
	})
	return true
}

func (k *striker) fill(at string) (back func() error, err error) {
	logs := at == k.s.logs
	if logs {
		k.s.history.logsFull(true)
	}
	path, err := volume.Fill(at)
	return func() error {
		err := os.Remove(path)
		if logs {
			k.s.history.logsFull(false)
		}
		return err
	}, err
}

func (k *striker) freeze(at string) (thaw func() error, err error) {
	return askFreezer(k.s.Freezer, at)
}

// keep copies a file beside the logs that are kept, where BERTH_KEEP_LOGS says so.
func (s *stage) keep(path string) {
	dir := os.Getenv("BERTH_KEEP_LOGS")
	if dir == "" {
		return
	}
	data, err := os.ReadFile(path)
	if err == nil {
		rel, _ := filepath.Rel(s.logs, path)
		to := filepath.Join(dir, "pods", rel)
		err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, 0o644))
	}
	if err != nil {
		s.report.say("keep %s: %v", path, fmt.Errorf("copy: %w", err))
	}
}
