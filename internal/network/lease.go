package network

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// hostLocal is the plugin that most nodes get their pods' addresses from, and where it keeps its leases unless it is
// told.
const (
	hostLocal     = "host-local"
	hostLocalData = "/var/lib/cni/networks"
)

// reclaim gives back the addresses of a network whose owners a power cut has left unwritten. host-local writes whose an
// address is into a file with the address's name, and syncs nothing: what is left of the last leases before the power
// went are empty files, which no DEL finds again, and which no ADD gives out. It writes under a lock, so who has the
// lock knows that an empty one is no lease that is just being made.
func reclaim(ctx context.Context, conf *netconf) error {
	dirs, err := leaseDirs(conf)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if len(emptyLeases(dir)) == 0 {
			continue
		}
		if err := removeEmptyLeases(ctx, dir); err != nil {
			return fmt.Errorf("give back the addresses in %s that a power cut left to nobody: %w", dir, err)
		}
	}
	return nil
}

// leaseDirs are where host-local may keep the leases of a network: where it does unless it is told, since a plugin may
// run it of which the configuration says nothing, as flannel does, and where the configuration says.
func leaseDirs(conf *netconf) ([]string, error) {
	dirs := []string{filepath.Join(hostLocalData, conf.Name)}
	for _, p := range conf.Plugins {
		if p.IPAM != hostLocal {
			continue
		}
		var of struct {
			IPAM struct {
				DataDir string `json:"dataDir"`
			} `json:"ipam"`
		}
		if err := json.Unmarshal(p.Raw, &of); err != nil {
			return nil, err
		}
		if of.IPAM.DataDir != "" {
			dirs = append(dirs, filepath.Join(of.IPAM.DataDir, conf.Name))
		}
	}
	return dirs, nil
}

func emptyLeases(dir string) (paths []string) {
	entries, _ := os.ReadDir(dir) // not there: no lease is
	for _, e := range entries {
		_, notAddress := netip.ParseAddr(e.Name())
		info, err := e.Info()
		if err == nil && notAddress == nil && info.Mode().IsRegular() && info.Size() == 0 {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths
}

// removeEmptyLeases takes host-local's lock. A plugin that hangs may hold it until ctx ends.
func removeEmptyLeases(ctx context.Context, dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("somebody holds %s: %w", lock.Name(), ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	for _, path := range emptyLeases(dir) {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}
