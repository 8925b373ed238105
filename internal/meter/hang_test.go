package meter

import (
	"os"
	"testing"
	"time"

	"berth/internal/sandbox"
	"berth/test/timeouts"
	"berth/test/volume"
)

// TestReadsOfADiskThatAnswersNothing asks about containers whose writable layers are on a file system that answers no
// call, not even stat: the first question waits shortly, those after it do not, and when the disk answers again so does
// the meter.
func TestReadsOfADiskThatAnswersNothing(t *testing.T) {
	if err := volume.SlowAvailable(); err != nil {
		t.Skip(err)
	}
	const many = 200
	var all []*sandbox.Container
	for range many {
		all = append(all, &sandbox.Container{ID: sandbox.NewID(), Storage: &sandbox.Storage{Bytes: 1 << 20}})
	}
	m := open(t, all...)
	at := t.TempDir()
	disk, err := volume.MountSlow(t.TempDir(), at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	m.cfg.Layout.Root = at
	m.upper(t, all[0].ID)
	ask := func(what string) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, c := range all {
				if u, ok := m.StorageOf(&m.record, c); !ok || u.Storage.Bytes != 1<<20 {
					t.Errorf("%s: %+v, %v", what, u, ok)
				}
			}
		}()
		select {
		case <-done:
		case <-time.After(timeouts.For(10 * time.Second)):
			t.Errorf("%s: the question still waits", what)
		}
	}
	ask("before")
	goOn := disk.Hang()
	m.usage.layer.Clear() // as of containers that no reading has met
	ask("while it hangs")
	goOn()
	wait(t, "the disk is asked again", func() bool { return m.Writable(&m.record, all[0]).Inodes > 0 })
	if err := os.RemoveAll(at + "/pods"); err != nil {
		t.Error(err)
	}
}
