package network

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fill"
	"berth/internal/limit"
)

// templated is the file that SetPodCIDR writes.
const templated = "10-berth-pods.conflist"

// CIDRError says that a pod CIDR is not valid.
type CIDRError struct {
	Value string
	Err   error
}

func (e *CIDRError) Error() string { return fmt.Sprintf("pod CIDR %q: %v", e.Value, e.Err) }

// Unwrap returns the kind and the cause.
func (e *CIDRError) Unwrap() []error { return []error{errdefs.ErrInvalidArgument, e.Err} }

// SetPodCIDR makes the CNI configuration for the addresses that the cluster gave to this node, such as
// "10.1.0.0/16,fd00::/64", from the template. Without a template it writes nothing, and also where a configuration that
// another program wrote is in force. A bad value is a *CIDRError and writes nothing.
func (c *CNIConfig) SetPodCIDR(cidrs string) error {
	if cidrs == "" {
		return nil
	}
	values, err := parseCIDRs(cidrs)
	if err != nil {
		return fmt.Errorf("set pod CIDR: %w", err)
	}
	cfg := c.inForce()
	if cfg.Template == "" {
		return nil
	}
	file := filepath.Join(cfg.ConfigDir, templated)
	if other, err := first(cfg.ConfigDir); err == nil && other != file {
		c.log.Info("pod CIDR not written: a CNI configuration of another program is in force",
			"file", other, "cidr", cidrs)
		return nil
	}
	written, err := c.cidr.write(file, unfinishedName(cfg.CacheDir), cfg.Template, values)
	if err != nil {
		return fmt.Errorf("set pod CIDR: %w", err)
	}
	if written {
		c.dirty(file)
	}
	return nil
}

// cidrValues are the fields of a template, named as containerd names them.
type cidrValues struct {
	PodCIDR       string   // the first
	PodCIDRRanges []string // all
	Routes        []string // a default route for each family
}

func parseCIDRs(cidrs string) (cidrValues, error) {
	var v cidrValues
	families := map[bool]bool{}
	for _, s := range strings.Split(cidrs, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err == nil && prefix.Addr().Is4In6() {
			err = errors.New("it is an IPv4 address in IPv6 form")
		}
		if err != nil {
			return v, &CIDRError{cidrs, err}
		}
		v.PodCIDRRanges = append(v.PodCIDRRanges, prefix.Masked().String())
		v4 := prefix.Addr().Is4()
		if families[v4] {
			continue
		}
		families[v4] = true
		if v4 {
			v.Routes = append(v.Routes, "0.0.0.0/0")
		} else {
			v.Routes = append(v.Routes, "::/0")
		}
	}
	v.PodCIDR = v.PodCIDRRanges[0]
	return v, nil
}

// cidrFile writes the configuration for pod CIDRs, for one caller at a time.
type cidrFile struct {
	mu sync.Mutex // held while the file is written, which has one name of this daemon until it is complete
}

// write fills in the template and replaces file by it, if it is a CNI configuration and differs.
func (c *cidrFile) write(file, unfinished, from string, values cidrValues) (written bool, err error) {
	text, err := limit.ReadFile(from, limit.CNIConfig)
	if err != nil {
		return false, fmt.Errorf("read the template: %w", err)
	}
	out, err := fill.Text(from, string(text), fill.Values{
		"PodCIDR": values.PodCIDR, "PodCIDRRanges": values.PodCIDRRanges, "Routes": values.Routes,
	})
	if err != nil {
		return false, err
	}
	if _, err := parse(file, out); err != nil {
		return false, fmt.Errorf("template %s makes no CNI configuration: %w", from, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, err := limit.ReadFile(file, limit.CNIConfig); err == nil && bytes.Equal(old, out) {
		return false, nil
	}
	return true, replace(file, filepath.Join(filepath.Dir(file), unfinished), out)
}

// unfinishedName is the name of what is not complete. Each instance has one of its own, told by the directory that is
// its alone: two may have one directory of configurations.
func unfinishedName(cacheDir string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(cacheDir)) // a hash takes all
	return fmt.Sprintf(".%s.%08x.tmp", templated, sum.Sum32())
}

// tidyUnfinished removes what daemons of earlier releases have left in the directory that were killed while they wrote.
// It goes by the form of the names that those had, and takes no file that may be being written.
func tidyUnfinished(dir string) {
	entries, _ := os.ReadDir(dir) // the watch tells of a directory that cannot be read
	for _, e := range entries {
		number, ours := strings.CutPrefix(e.Name(), ".tmp-")
		if _, err := strconv.ParseUint(number, 10, 64); !ours || err != nil || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// replace writes a file beside the one that it then replaces, under one name, so that what a killed daemon has left is
// written over. It is on the disk before it has its name: after a power cut an empty file would keep the node's network
// down until somebody tells the pod CIDR again.
func replace(file, unfinished string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	err := writeSynced(unfinished, data)
	if err == nil {
		err = os.Rename(unfinished, file)
	}
	if err != nil {
		_ = os.Remove(unfinished)
	}
	return err
}

func writeSynced(file string, data []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
}
