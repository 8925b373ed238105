package sandbox

import (
	"os"
	"path/filepath"
	"testing"
)

// TestEtcOfAnOlderRelease finds the files of a pod that was made before they had a directory of their own.
func TestEtcOfAnOlderRelease(t *testing.T) {
	l := &Layout{State: t.TempDir()}
	id := NewID()
	if err := os.MkdirAll(l.Run(id), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := Etc(l, id); got != l.Run(id) {
		t.Errorf("without the directory: %s", got)
	}
	if err := os.Mkdir(EtcMount(l, id), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := Etc(l, id); got != filepath.Join(l.Run(id), "etc") {
		t.Errorf("with the directory: %s", got)
	}
}
