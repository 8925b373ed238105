// Package limits changes what live cgroups may use: all that is wanted, or nothing. It stands beside package cgroup
// because it speaks of limits as OCI runtimes do, and the monitor, which uses that one, is kept small.
package limits

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
)

// UsageError says that a cgroup uses more memory than a limit would leave it. Nothing was changed.
type UsageError struct {
	File         string
	Limit, Usage uint64
}

func (e *UsageError) Error() string {
	return fmt.Sprintf("%s: a limit of %d bytes is below the %d bytes in use, which cannot be given back", e.File, e.Limit,
		e.Usage)
}

// Unwrap makes it the error that the kernel has for it.
func (e *UsageError) Unwrap() error { return unix.EBUSY }

// Was is what is known of a container before its limits are changed. The zero value is nothing.
type Was struct {
	Limits *specs.LinuxResources // what was asked for; nil where it is not known
	// Peers are cgroups of containers that the same OCI runtime made, with the CPU shares that each was to get. They are
	// asked for where the container itself does not show what the runtime makes of shares. nil is none.
	Peers iter.Seq2[string, uint64]
}

// At is w with the cgroups of the peers named as place has them. Those of which it knows nothing are left out.
func (w Was) At(place func(cgroup string) (string, error)) Was {
	if w.Peers == nil {
		return w
	}
	return Was{w.Limits, func(yield func(string, uint64) bool) {
		for group, shares := range w.Peers {
			if at, err := place(group); err == nil && !yield(at, shares) {
				return
			}
		}
	}}
}

// Set changes the limits of a cgroup that is there: all that want has, or none. Where one is refused, those before it
// are put back and the error says which it was. putBack undoes the whole change, for a caller that fails later.
//
// The path, as that of a peer, is that of cgroup.Locate; below names further cgroups below it that have to have the
// same limits.
func Set(path string, was Was, want *specs.LinuxResources, below ...string) (putBack func() error, err error) {
	at, err := cgroup.Locate(path)
	if err != nil {
		return nil, err
	}
	was = was.At(func(path string) (string, error) {
		at, err := cgroup.Locate(path)
		return at.Unified, err
	})
	var files []setting
	if cgroup.Mode() == cgroup.V2 {
		for _, b := range append([]string{""}, below...) {
			more, err := limitsV2(filepath.Join(at.Unified, b), was, want)
			if err != nil {
				return nil, err
			}
			files = append(files, more...)
		}
	} else if files, err = limitsV1(at.V1, want); err != nil {
		return nil, err
	}
	return apply(files)
}

// Direct is the cgroup driver cgroupfs, with limits that can be changed.
type Direct struct{ cgroup.Direct }

// SetLimits changes the limits of a container, as Set does.
func (Direct) SetLimits(_ context.Context, ctr string, was Was, want *specs.LinuxResources) (
	putBack func() error, err error) {
	return Set(ctr, was, want)
}

// setting is one value for one file.
type setting struct{ file, value string }

// apply writes the settings in order, or none of them.
func apply(all []setting) (putBack func() error, err error) {
	var undo []setting
	putBack = func() error {
		var errs []error
		for i := len(undo) - 1; i >= 0; i-- {
			errs = append(errs, undo[i].restore())
		}
		return errors.Join(errs...)
	}
	for _, s := range all {
		old, err := s.before()
		if err == nil {
			err = s.write()
		}
		if err != nil {
			return nil, errors.Join(err, putBack())
		}
		undo = append(undo, old...)
	}
	return putBack, nil
}

// Keep reads files of a cgroup of v2; those that are not there are left out. restore writes again what differs by then,
// for a caller that has had somebody else write there.
func Keep(dir string, names ...string) (restore func() error) {
	var kept []setting
	read := func(file string) (string, error) {
		data, err := os.ReadFile(file)
		return strings.TrimSpace(string(data)), err
	}
	for _, name := range names {
		file := filepath.Join(dir, name)
		if text, err := read(file); err == nil {
			kept = append(kept, setting{file, text})
		}
	}
	return func() error {
		var errs []error
		for _, s := range kept {
			text, err := read(s.file)
			ended := errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
			if ended || err == nil && text == s.value {
				continue
			}
			for line := range strings.SplitSeq(s.value, "\n") {
				errs = append(errs, setting{s.file, line}.restore())
			}
		}
		return errors.Join(errs...)
	}
}

// restore writes what was there before. Of a limit of memory that is lower again, what is in use by now above it is
// given back first; where it cannot be, the higher limit stays: with the lower one the kernel would kill processes.
func (s setting) restore() error {
	if limit, err := strconv.ParseUint(s.value, 10, 64); err == nil && filepath.Base(s.file) == "memory.max" {
		if err := makeRoom(filepath.Dir(s.file), limit); err != nil {
			return fmt.Errorf("put back %d bytes: %w", limit, err)
		}
	}
	return s.write()
}

func (s setting) write() error {
	// A write of nothing would not reach the kernel; a line without a word takes a list away.
	err := cgroup.Write(s.file, s.value+"\n")
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: this kernel has no such setting, or its controller is not on here: %w", s.file, unix.ENOENT)
	case errors.Is(err, unix.EBUSY) && strings.HasPrefix(filepath.Base(s.file), "memory."):
		return s.tooMuch(err)
	}
	return fmt.Errorf("set %s to %q: %w", s.file, s.value, errors.Unwrap(err))
}

// tooMuch explains a refused memory limit of v1, where the kernel has tried to make room.
func (s setting) tooMuch(err error) error {
	limit, parseErr := strconv.ParseUint(s.value, 10, 64)
	used, readErr := readUint(strings.Replace(s.file, ".limit_in_bytes", ".usage_in_bytes", 1))
	if parseErr != nil || readErr != nil || used <= limit {
		return fmt.Errorf("set %s to %q: %w", s.file, s.value, err)
	}
	return &UsageError{s.file, limit, used}
}

// keyed are files that hold a line for each device and take one line a write, with what takes a device's line away.
var keyed = map[string]string{
	"io.max": "rbps=max wbps=max riops=max wiops=max", "io.latency": "target=0", "io.weight": "default",
	"io.bfq.weight": "default",
	"rdma.max":      "hca_handle=max hca_object=max",
}

// before is what puts back the file as it is now.
func (s setting) before() ([]setting, error) {
	data, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: this kernel has no such setting, or its controller is not on here: %w", s.file,
			unix.ENOENT)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.file, err)
	}
	none, ok := keyed[filepath.Base(s.file)]
	if !ok {
		return []setting{{s.file, strings.TrimSpace(string(data))}}, nil
	}
	var old []setting
	for line := range strings.Lines(s.value) {
		key, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		now := ""
		for l := range strings.Lines(string(data)) {
			if k, _, _ := strings.Cut(strings.TrimSpace(l), " "); k == key {
				now = strings.TrimSpace(l)
			}
		}
		if now == "" {
			now = key + " " + none
		}
		old = append(old, setting{s.file, now})
	}
	return old, nil
}

func readUint(file string) (uint64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	text := string(bytes.TrimSpace(data))
	if text == "max" {
		return 1<<64 - 1, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s holds %q, not a number", file, text)
	}
	return n, nil
}

// number is a limit as v1 files take it, where -1 is none.
func number[N int64 | uint64](n N) string { return fmt.Sprint(n) }

// orMax is a limit as v2 files take it.
func orMax(n int64) string {
	if n < 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}
