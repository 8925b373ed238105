package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/config"
	"berth/internal/rootfs"
)

// tryImages refuses a place for images that no container could run from. One that is full or read-only just now is no
// reason not to start: there are pods to serve.
func tryImages(root string, log *slog.Logger) error {
	dir := filepath.Join(root, "ingest") // where the store collects what a killed daemon left
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = rootfs.TryLayers(dir)
	}
	var unfit *rootfs.UnfitError
	if errors.As(err, &unfit) {
		unfit.Dir = root
		return fmt.Errorf("%w: set images.root to a directory on another one, such as ext4, xfs, btrfs or tmpfs", err)
	}
	if err != nil {
		log.Warn("it could not be found out whether the image store can hold layers", "error", err)
	}
	return nil
}

// containersRoot is where containers write; the image store's own directory when both are on one file system: a
// kubelet takes two names for two file systems.
func containersRoot(cfg *config.Config) string {
	images, containers := cfg.ImagesRoot(), filepath.Join(cfg.Root, "pods")
	if a, b := deviceOf(images), deviceOf(containers); a != b && a != 0 && b != 0 {
		return containers
	}
	return images
}

// deviceOf is that of a path's file system; 0 when it is unknown.
func deviceOf(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0
	}
	return st.Dev
}
