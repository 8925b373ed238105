package pod

import (
	"os"
	"path/filepath"
	"testing"
)

// A daemon that is killed, or finds no room, while it notes the boot must not make the next one throw away what lives.
func TestTornBootMarkKeepsTheStateOfThisBoot(t *testing.T) {
	b := open(t)
	pod, _ := started(t, b)
	mark := filepath.Join(b.cfg.State, "boot")
	before, err := os.Stat(mark)
	if err != nil {
		t.Fatal(err)
	}
	b.reopen(t)
	if after, err := os.Stat(mark); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the mark of the same boot was written again: %v", err)
	}
	if err := os.Truncate(mark, 0); err != nil {
		t.Fatal(err)
	}
	keep := filepath.Join(b.cfg.run(pod), "keep")
	if err := os.WriteFile(keep, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if err := freshState(&b.cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Errorf("the run directory of a live pod was cleared: %v", err)
	}
	if text, _ := os.ReadFile(mark); string(text) != b.cfg.Boot {
		t.Errorf("the mark says %q", text)
	}
	b.reopen(t)
}

// What is mounted below the state directory is not entered, whatever the mark says.
func TestStateOfAnotherBootIsNotClearedThroughAMount(t *testing.T) {
	b := open(t)
	pod, ctr := started(t, b)
	inside := filepath.Join(b.cfg.rootfs(pod, ctr), "inside")
	if err := os.WriteFile(inside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.Close()
	cfg := b.cfg
	cfg.Boot = "boot-2"
	if err := freshState(&cfg); err == nil {
		t.Error("the state was cleared although something is mounted in it")
	}
	if _, err := os.Stat(inside); err != nil {
		t.Errorf("a container's file was removed through its mount: %v", err)
	}
	b.reopen(t)
}
