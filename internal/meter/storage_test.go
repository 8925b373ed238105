package meter

import (
	"os"
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
	ctr := sandbox.NewID()
	m := open(t, &sandbox.Container{ID: ctr, State: sandbox.Running, Storage: &sandbox.Storage{Bytes: 1 << 20}})
	upper := m.upper(t, ctr)
	const many = 3
	look := func(want int) {
		t.Helper()
		wait(t, "the reading is told", func() bool {
			if !m.readUsage(t.Context()) {
				t.Fatal("the daemon ended")
			}
			m.Storage.look(t.Context())
			full, _ := m.Storage.Full()
			return len(full) == want
		})
		for range many {
			m.Storage.look(t.Context())
		}
	}
	for i := range 2 {
		if err := os.WriteFile(upper+"/file", make([]byte, 2<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		look(1)
		full, reached := m.Storage.Full()
		if reached != uint64(i+1) || full[0].Container != ctr || full[0].Kept || len(m.Problems()) != 1 {
			t.Errorf("%d times, %+v, problems %+v", reached, full, m.Problems())
		}
		if len(m.events) != i+1 {
			t.Fatalf("%d events: %+v", len(m.events), m.events)
		}
		e := m.events[i]
		if e.ctr != ctr || e.reason != ReasonStorageLimit || !strings.Contains(e.what, "of the 1048576 bytes") {
			t.Errorf("%+v", e)
		}
		if err := os.Remove(upper + "/file"); err != nil {
			t.Fatal(err)
		}
		look(0)
	}
	if n := len(m.Problems()); n != 0 || len(m.events) != 2 {
		t.Errorf("%d problems are left, events %+v", n, m.events)
	}
}
