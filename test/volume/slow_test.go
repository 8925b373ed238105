package volume

import (
	"os"
	"path/filepath"
	"testing"
	"time"
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
