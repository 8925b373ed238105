package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/isolate"
)

// each runs f with a mounted volume of every kind that this machine has.
func each(t *testing.T, f func(t *testing.T, v *Volume, at string)) {
	for _, kind := range []Kind{Ext4, XFS} {
		t.Run(string(kind), func(t *testing.T) {
			if err := kind.Available(); err != nil {
				t.Skip(err)
			}
			v, err := Make(t.TempDir(), kind, 16)
			if err != nil {
				t.Fatal(err)
			}
			at := t.TempDir()
			t.Cleanup(func() {
				if err := v.Unmount(); err != nil {
					t.Error(err)
				}
			})
			if err := v.Mount(at); err != nil {
				t.Fatal(err)
			}
			f(t, v, at)
		})
	}
}

func write(t *testing.T, path string, sync bool) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("content")
	if sync {
		err = errors.Join(err, f.Sync())
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestCut wants a power cut to be one: what was synced stays, and what was not is gone, or is a name without its
// content.
func TestCut(t *testing.T) {
	each(t, func(t *testing.T, v *Volume, at string) {
		for loss, name := range map[Loss]string{Unlogged: "unlogged", Unwritten: "unwritten"} {
			synced, lost := filepath.Join(at, name+"-synced"), filepath.Join(at, name)
			write(t, synced, true)
			write(t, lost, false)
			if err := v.Cut(loss); err != nil {
				t.Fatal(err)
			}
			if err := v.Mount(at); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(synced); err != nil || string(got) != "content" {
				t.Errorf("what was synced holds %q, %v", got, err)
			}
			got, err := os.ReadFile(lost)
			if loss == Unlogged && !os.IsNotExist(err) || loss == Unwritten && (err != nil || len(got) != 0) {
				t.Errorf("what was %s holds %q, %v", name, got, err)
			}
		}
	})
}

// TestCutUnderANamespace cuts the power while a mount namespace of somebody else has the volume as well.
func TestCutUnderANamespace(t *testing.T) {
	each(t, func(t *testing.T, v *Volume, at string) {
		write(t, filepath.Join(at, "synced"), true)
		other, err := isolate.NewSpace()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Close() }()
		if err := v.Cut(Unlogged); err != nil {
			t.Fatal(err)
		}
		if err := v.Mount(at); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(at, "synced")); err != nil || string(got) != "content" {
			t.Errorf("what was synced holds %q, %v", got, err)
		}
		write(t, filepath.Join(at, "after"), true)
	})
}

func TestFill(t *testing.T) {
	each(t, func(t *testing.T, _ *Volume, at string) {
		path, err := Fill(at)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "more"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("there was room for more: %v", err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(at, "again"), true)
	})
}
