package network

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
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
