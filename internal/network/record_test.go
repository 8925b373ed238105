package network

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRecordThatIsAFIFO has a FIFO be where a pod's record was: to open it would wait for a writer for ever.
func TestRecordThatIsAFIFO(t *testing.T) {
	h := newHost(t, bridgeV4)
	p := h.pod()
	h.attach(p)
	path := filepath.Join(h.cfg.CacheDir, p.ID)
	must(t, os.Remove(path), unix.Mkfifo(path, 0o600))
	if ids, err := h.Attachments(); err != nil || !slices.Equal(ids, []string{p.ID}) {
		t.Errorf("attachments %v, %v", ids, err)
	}
	h.detach(p)
}

// TestRecordOfAnotherPod has two pods' records change places, and detaches one: the other stays attached, and neither
// leaves anything.
func TestRecordOfAnotherPod(t *testing.T) {
	h := newHost(t, bridgeV4)
	p, q := h.pod(), h.pod()
	h.attach(p)
	h.attach(q)
	one, two := filepath.Join(h.cfg.CacheDir, p.ID), filepath.Join(h.cfg.CacheDir, q.ID)
	must(t, os.Rename(one, one+".x"), os.Rename(two, one), os.Rename(one+".x", two))
	h.detach(p)
	enter(t, Namespaces{Net: q.NetNS}, "ip addr show dev eth0")
	if leases, _ := filepath.Glob(h.leases + "/pods/10.*"); len(leases) != 1 {
		t.Errorf("leases %v", leases)
	}
	h.detach(q)
}
