package pod

import (
	"os"
	"path/filepath"
	"testing"
)

// TestEtcOfAnOlderRelease finds the files of a pod that was made before they had a directory of their own.
func TestEtcOfAnOlderRelease(t *testing.T) {
	l := &Layout{State: t.TempDir()}
	id := NewID()
	if err := os.MkdirAll(l.run(id), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := etcOf(l, id); got != l.run(id) {
		t.Errorf("without the directory: %s", got)
	}
	if err := os.Mkdir(etcMount(l, id), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := etcOf(l, id); got != filepath.Join(l.run(id), "etc") {
		t.Errorf("with the directory: %s", got)
	}
}

// unmount takes away what is mounted for a pod, as a boot does.
func (b *bench) unmount(t *testing.T, pod ID) {
	t.Helper()
	l := &b.cfg.Layout
	for _, path := range []string{l.netns(pod), l.ipcns(pod), l.utsns(pod), l.shm(pod), etcMount(l, pod)} {
		unmountForTest(t, path)
	}
}
