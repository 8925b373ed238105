package pod

import (
	"os"
	"path/filepath"
	"testing"

	"berth/internal/sandbox"
)

// TestEtcOfAnOlderRelease finds the files of a pod that was made before they had a directory of their own.
func TestEtcOfAnOlderRelease(t *testing.T) {
	l := &sandbox.Layout{State: t.TempDir()}
	id := sandbox.NewID()
	if err := os.MkdirAll(l.Run(id), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := sandbox.Etc(l, id); got != l.Run(id) {
		t.Errorf("without the directory: %s", got)
	}
	if err := os.Mkdir(sandbox.EtcMount(l, id), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := sandbox.Etc(l, id); got != filepath.Join(l.Run(id), "etc") {
		t.Errorf("with the directory: %s", got)
	}
}

// unmount takes away what is mounted for a pod, as a boot does.
func (b *bench) unmount(t *testing.T, pod sandbox.ID) {
	t.Helper()
	l := &b.cfg.Layout
	for _, path := range []string{l.NetNSPin(pod), l.IPCNSPin(pod), l.UTSNSPin(pod), l.Shm(pod),
		sandbox.EtcMount(l, pod)} {
		unmountForTest(t, path)
	}
}
