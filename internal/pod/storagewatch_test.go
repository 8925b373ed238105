package pod

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/sandbox"
)

func TestStorageReached(t *testing.T) {
	s := sandbox.Storage{Bytes: 100 << 20, Inodes: 1000}
	for name, c := range map[string]struct {
		of   sandbox.Storage
		used Usage
		was  bool
		want string
	}{
		"room":                      {s, Usage{Bytes: 99<<20 - 1, Inodes: 989}, false, ""},
		"the last block":            {s, Usage{Bytes: 99 << 20}, false, "of the 104857600 bytes"},
		"the last file":             {s, Usage{Inodes: 990}, false, "of the 1000 files"},
		"beyond":                    {s, Usage{Bytes: 200 << 20}, false, "209715200 of the 104857600 bytes"},
		"a little room again":       {s, Usage{Bytes: 96 << 20}, true, "bytes"},
		"enough room again":         {s, Usage{Bytes: 94 << 20, Inodes: 940}, true, ""},
		"no limit":                  {sandbox.Storage{}, Usage{Bytes: 1 << 50, Inodes: 1 << 50}, false, ""},
		"no limit of files":         {sandbox.Storage{Bytes: 1 << 20}, Usage{Inodes: 1 << 50}, false, ""},
		"a hundredth of a huge one": {sandbox.Storage{Bytes: 1 << 40}, Usage{Bytes: 1<<40 - 2<<20}, false, ""},
	} {
		if got := reached(c.of, c.used, c.was); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, wanted %q", name, got, c.want)
		}
	}
}

// TestStorageIsWatched has a container write more than it may on a file system that keeps nobody to a limit: it is told
// once, until there is room again.
func TestStorageIsWatched(t *testing.T) {
	b := open(t)
	b.projects = false
	pod, ctr := started(t, b)
	if err := b.index.Load().pods[pod].update(t.Context(), "test", func(r *sandbox.Record) error {
		return r.Edit(ctr, func(c *sandbox.Container) error { c.Storage = &sandbox.Storage{Bytes: 1 << 20}; return nil })
	}); err != nil {
		t.Fatal(err)
	}
	w := b.Watch()
	defer w.Close()
	upper := filepath.Join(b.cfg.Writable(pod, ctr), "upper")
	if err := os.MkdirAll(upper, 0o700); err != nil {
		t.Fatal(err)
	}
	const many = 3
	look := func(want int) {
		t.Helper()
		wait(t, "the reading is told", func() bool {
			b.readUsage(t)
			lookAtStorage(t.Context(), b.Pods)
			full, _ := FullStorage(b.Pods)
			return len(full) == want
		})
		for range many {
			lookAtStorage(t.Context(), b.Pods)
		}
	}
	for i := range 2 {
		if err := os.WriteFile(upper+"/file", make([]byte, 2<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		look(1)
		full, reached := FullStorage(b.Pods)
		if reached != uint64(i+1) || full[0].Container != ctr || full[0].Kept || len(b.Problems()) != 1 {
			t.Errorf("%d times, %+v, problems %+v", reached, full, b.Problems())
		}
		e := take(t, w, "container 4")[0]
		if e.ID != ctr || e.Reason != ReasonStorageLimit || !strings.Contains(e.Message, "of the 1048576 bytes") {
			t.Errorf("%+v", e)
		}
		if err := os.Remove(upper + "/file"); err != nil {
			t.Fatal(err)
		}
		look(0)
		none(t, w)
	}
	if n := len(b.Problems()); n != 0 {
		t.Errorf("%d problems are left", n)
	}
}

// readUsage reads the writable layers now, whatever was read a moment ago.
func (b *bench) readUsage(t *testing.T) {
	t.Helper()
	if !(Meter{b.Pods}).readUsage(t.Context()) {
		t.Fatal("the daemon ended")
	}
}
