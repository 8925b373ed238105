package cgroup

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// removeTimeout is how long processes that were sent SIGKILL may take to leave a tree: they have to get the processor
// for it.
const removeTimeout = 10 * time.Second

// RemoveTree kills what is left in a cgroup and in those below it, and removes them, in every hierarchy. It is nil when
// nothing is there. The path is that of Locate: one that only Berth uses.
func RemoveTree(path string) error { return removeEverywhere(path, removeTimeout) }

// removeEverywhere is RemoveTree with a time for what is killed to leave each of them.
func removeEverywhere(path string, within time.Duration) error {
	there, err := dirs(path)
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	var errs []error
	for _, dir := range there {
		errs = append(errs, removeTree(dir, time.Now().Add(within)))
	}
	return errors.Join(errs...)
}

// removeTree goes on until the tree is gone: what is killed leaves it a little later.
func removeTree(dir string, deadline time.Time) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := removeDirs(dir)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		pids, listErr := Pids(dir)
		if listErr != nil {
			return listErr
		}
		if slices.Contains(pids, os.Getpid()) {
			return fmt.Errorf("remove cgroup %s: this process is in it", dir)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: processes %v do not die of SIGKILL: they hang in the kernel (see /proc/<pid>/stack)", err,
				pids)
		}
		if err := At(dir).Kill(); err != nil {
			return err
		}
		time.Sleep(wait)
	}
}

// Children lists the names of the cgroups directly below one, of all hierarchies, each once. There are none where there
// is no such cgroup.
func Children(path string) ([]string, error) {
	there, err := dirs(path)
	if err != nil {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	var names []string
	for _, dir := range there {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
