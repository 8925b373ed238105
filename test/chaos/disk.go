package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/test/volume"
)

// How large the disks of a run are, in MiB: small, so that they are filled in a moment.
const (
	recordsMiB = 384
	logsMiB    = 48
)

// mountDisks has the runtime's root and the logs of pods each on a small file system. That of the logs is seen through
// another one, which can be slow.
func (s *stage) mountDisks() error {
	if err := errors.Join(volume.Ext4.Available(), volume.SlowAvailable()); err != nil {
		return err
	}
	if err := os.Mkdir(logsDisk(s), 0o755); err != nil {
		return err
	}
	for at, mib := range map[string]int{s.root: recordsMiB, logsDisk(s): logsMiB} {
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
	var err error
	s.network, err = volume.MountSlow(logsDisk(s), s.logs)
	return err
}

// logsDisk is where the disk of the logs is mounted.
func logsDisk(s *stage) string { return s.logs + ".below" }

func (k *striker) disk(name string) string {
	if name == "logs" {
		return logsDisk(k.s)
	}
	return k.s.root
}

// strikeDisk has a disk hang, be full or be slow for a while. Of each there is one thing at a time.
func (k *striker) strikeDisk(p plan) bool {
	if _, busy := k.busy.LoadOrStore(p.disk, true); busy {
		return false
	}
	at := k.disk(p.disk)
	undo, err := k.fill, error(nil)
	switch p.verb {
	case "freeze":
		undo = k.freeze
	case "slow":
		undo = func(string) (func() error, error) { return k.slow(p.delay), nil }
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
	logs := at == logsDisk(k.s)
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
	if at != logsDisk(k.s) {
		return askFreezer(k.s.Freezer, at)
	}
	k.s.history.logsHang(true)
	goOn, err := askFreezer(k.s.Freezer, at)
	if err != nil {
		k.s.history.logsHang(false)
		return nil, err
	}
	return func() error {
		defer k.s.history.logsHang(false)
		return goOn()
	}, nil
}

// mostDelay is how long each operation on a slow disk takes at most: a container that writes a line at a time has its
// lines wait for each other.
const mostDelay = 30 * time.Millisecond

func (k *striker) slow(delay time.Duration) (back func() error) {
	k.s.history.logsHang(true)
	k.s.network.Delay(delay)
	return func() error {
		k.s.network.Delay(0)
		k.s.history.logsHang(false)
		return nil
	}
}

// keep copies a file to that path among the logs that are kept, where BERTH_KEEP_LOGS says so.
func (s *stage) keep(path, as string) {
	dir := os.Getenv("BERTH_KEEP_LOGS")
	if dir == "" {
		return
	}
	data, err := os.ReadFile(path)
	if err == nil {
		to := filepath.Join(dir, "pods", as)
		err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, data, 0o644))
	}
	if err != nil {
		s.report.say("keep %s: %v", path, fmt.Errorf("copy: %w", err))
	}
}
