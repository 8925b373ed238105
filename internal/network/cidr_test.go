package network

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestUnfinishedPodCIDRIsTakenOver has daemons be killed while they write the configuration: all write under one name
// before it has its own, and the next one goes on with what is there.
func TestUnfinishedPodCIDRIsTakenOver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "template")
	must(t, os.WriteFile(file, []byte(cidrTemplate), 0o644))
	h := newHost(t, "", func(c *Config) { c.Template = file })
	names := func() (hidden []string) {
		entries, err := os.ReadDir(h.cfg.ConfigDir)
		must(t, err)
		for _, e := range entries {
			if e.Name() != templated {
				hidden = append(hidden, e.Name())
			}
		}
		return hidden
	}
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for j := range 25 {
				if err := h.SetPodCIDR(fmt.Sprintf("10.%d.%d.0/24", i, j)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	t.Cleanup(writers.Wait)
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	seen := ""
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		for _, name := range names() {
			if seen != "" && seen != name || !strings.HasPrefix(name, ".") {
				t.Fatalf("%s beside %s", name, seen)
			}
			seen = name
		}
	}
	if seen == "" {
		t.Fatal("nothing was seen")
	}
	must(t, os.WriteFile(filepath.Join(h.cfg.ConfigDir, seen), []byte(strings.Repeat("x", 10000)), 0o600))
	must(t, h.SetPodCIDR("10.200.0.0/16"))
	if left := names(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	h.eventually(t, "pods")
	info, err := os.Stat(filepath.Join(h.cfg.ConfigDir, templated))
	if err != nil || info.Mode() != 0o644 || info.Size() > 1000 {
		t.Errorf("%+v, %v", info, err)
	}
}

// TestPodCIDROfTwoInstances has two instances write into one directory at once. None fails, and what is read there is
// whole.
func TestPodCIDROfTwoInstances(t *testing.T) {
	file := filepath.Join(t.TempDir(), "template")
	must(t, os.WriteFile(file, []byte(cidrTemplate), 0o644))
	one := newHost(t, "", func(c *Config) { c.Template = file })
	other := newHost(t, "", func(c *Config) { c.Template, c.ConfigDir = file, one.cfg.ConfigDir })
	must(t, one.SetPodCIDR("10.0.0.0/16"))
	var writers sync.WaitGroup
	for i, h := range []*host{one, other} {
		writers.Go(func() {
			for j := range 100 {
				cidrs := fmt.Sprintf("10.%d.%d.0/24", i, j)
				if i == 1 {
					cidrs += strings.Repeat(",fd00:1:2:3::/64", 500)
				}
				if err := h.SetPodCIDR(cidrs); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		written := filepath.Join(one.cfg.ConfigDir, templated)
		data, err := os.ReadFile(written)
		must(t, err)
		if _, err := parse(written, data); err != nil {
			t.Errorf("%v: %.200s", err, data)
			ended = true
		}
	}
	writers.Wait()
}

// TestUnfinishedFilesOfEarlierReleases has daemons of before have been killed while they wrote. What they left goes
// with the next start where the pod CIDR is written, and nothing else does.
func TestUnfinishedFilesOfEarlierReleases(t *testing.T) {
	file := filepath.Join(t.TempDir(), "template")
	must(t, os.WriteFile(file, []byte(cidrTemplate), 0o644))
	h := newHost(t, "", func(c *Config) { c.Template = file })
	old := time.Now().Add(-2 * time.Hour)
	for name, stays := range map[string]bool{
		".tmp-3141592653": false, ".tmp-0": false, ".tmp-": true, ".tmp-a1": true, "tmp-1": true, ".tmp-1.conflist": true,
	} {
		path := filepath.Join(h.cfg.ConfigDir, name)
		must(t, os.WriteFile(path, []byte("{"), 0o600), os.Chtimes(path, old, old))
		h.open()
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s: %v", name, err)
		}
	}
	fresh, link := filepath.Join(h.cfg.ConfigDir, ".tmp-1"), filepath.Join(h.cfg.ConfigDir, ".tmp-2")
	must(t, os.WriteFile(fresh, nil, 0o600), os.Symlink(file, link))
	h.open()
	for _, path := range []string{fresh, link, file} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	must(t, os.Chtimes(fresh, old, old))
	h.cfg.Template = ""
	h.open()
	if _, err := os.Lstat(fresh); err != nil {
		t.Errorf("without a template: %v", err)
	}
}
