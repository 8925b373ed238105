package volume

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSlow(t *testing.T) {
	if err := SlowAvailable(); err != nil {
		t.Skip(err)
	}
	source, at := t.TempDir(), t.TempDir()
	d, err := MountSlow(source, at)
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			_ = d.Close()
		}
	}()
	path := filepath.Join(at, "f")
	if err := os.WriteFile(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(source, "f")); err != nil || string(text) != "one" {
		t.Errorf("below: %q, %v", text, err)
	}
	goOn := d.Hang()
	read := make(chan error, 1)
	go func() { _, err := os.ReadFile(path); read <- err }()
	for d.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-read:
		t.Errorf("answered while it hangs: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	goOn()
	if err := <-read; err != nil {
		t.Error(err)
	}
	d.Delay(5 * time.Millisecond)
	began := time.Now()
	if _, err := os.Stat(path); err != nil || time.Since(began) < 5*time.Millisecond {
		t.Errorf("answered after %s, %v", time.Since(began), err)
	}
	closed = true
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it is still mounted")
	}
}

// TestSlowLetsGo closes a Slow at once after files of it were closed, and while others are open, with a program that
// was started meanwhile: what it showed can be unmounted.
func TestSlowLetsGo(t *testing.T) {
	if err := SlowAvailable(); err != nil {
		t.Skip(err)
	}
	below := t.TempDir()
	v := Mounted(t, below, Ext4, 16)
	for range 20 {
		at := t.TempDir()
		d, err := MountSlow(below, at)
		if err != nil {
			t.Fatal(err)
		}
		var open []*os.File
		for i := range 100 {
			f, err := os.Create(filepath.Join(at, fmt.Sprint(i)))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, f)
		}
		other := exec.Command("sleep", "1000")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = other.Process.Kill(), other.Wait() })
		dir, err := os.Open(at)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range open[1:] {
			_ = f.Close()
		}
		err = d.Close()
		_, left := open[0].Stat()
		_, _ = open[0].Close(), dir.Close()
		if err != nil || left == nil {
			t.Fatalf("closed with %v, an open file answers: %v", err, left)
		}
	}
	if err := unix.Unmount(below, 0); err != nil {
		t.Fatalf("unmount what was shown: %v", err)
	}
	v.at = ""
}
