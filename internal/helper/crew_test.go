package helper

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"berth/internal/cgroup"
	"berth/test/isolate"
)

// born starts a process of a crew, and returns the name of its cgroup in the hierarchy cgroup2.
func born(c *Crew) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	p, err := c.Start([]string{"-c", "exec cat /proc/self/cgroup"}, []string{"PATH=/usr/bin:/bin"}, []*os.File{nil, w, w})
	_ = w.Close()
	if err != nil {
		return "", err
	}
	said, err := io.ReadAll(r)
	_, werr := p.Wait()
	_, group, _ := strings.Cut(string(said), "0::")
	return filepath.Base(strings.TrimSpace(group)), errors.Join(err, werr)
}

// TestCrewOpensAgain has a crew fail to open its group, and lose it later: it starts processes again as soon as the
// group is there.
func TestCrewOpensAgain(t *testing.T) {
	in := isolate.Group(t).Path()
	c := &Crew{Program: "/bin/sh", Group: filepath.Join(in, "crew")}
	defer c.Close()
	for range 2 {
		if _, err := born(c); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "crew") {
			t.Errorf("without its group: %v", err)
		}
		g, err := cgroup.Make(in, "crew")
		if err != nil {
			t.Fatal(err)
		}
		if group, err := born(c); err != nil || group != "crew" {
			t.Errorf("with its group: in %q, %v", group, err)
		}
		if err := errors.Join(g.WaitEmpty(t.Context()), g.Remove()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cgroup.Make(in, "crew"); err != nil { // made anew since it was used last
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if group, err := born(c); err != nil || group != "crew" {
				t.Errorf("with another group: in %q, %v", group, err)
			}
		})
	}
	all.Wait()
	if err := os.Remove(c.Group); err != nil {
		t.Error(err)
	}
}

// TestCrewIsClosed wants no process of a crew that was closed, before or after it had one.
func TestCrewIsClosed(t *testing.T) {
	for _, used := range []bool{false, true} {
		c := &Crew{Program: "/bin/sh"}
		if used {
			if _, err := born(c); err != nil {
				t.Fatal(err)
			}
		}
		c.Close()
		if _, err := born(c); !errors.Is(err, os.ErrClosed) {
			t.Errorf("used before: %v: %v", used, err)
		}
	}
}
