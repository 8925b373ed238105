//go:build berth_fault

package image

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestCrashAtEveryPoint learns the fault points of a pull, a moved tag and a removal from a trace, kills a process at each,
// and wants the next Open to find a sound store on which the same work succeeds.
func TestCrashAtEveryPoint(t *testing.T) {
	if root := os.Getenv("CRASH_ROOT"); root != "" {
		if err := crashWork(root); err != nil {
			t.Fatal(err)
		}
		return
	}
	host := startRegistry(t, "")
	base := gz(t, folder("d"), file("d/a", "1"))
	push(t, host+"/app:v1", imageOf(t, base, gz(t, file("d/implied/x", "1"))))
	push(t, host+"/app:v2", imageOf(t, base, gz(t, file("y", "2"))))
	push(t, host+"/app:same", imageOf(t, base, gz(t, file("y", "2"))))
	trace := filepath.Join(t.TempDir(), "trace")
	if err := child(host, t.TempDir(), "BERTH_FAULT_TRACE="+trace).Run(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	points := strings.Fields(string(raw))
	slices.Sort(points)
	points = slices.Compact(points)
	if len(points) < 18 {
		t.Errorf("only the points %v", points)
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			root := t.TempDir()
			err := child(host, root, "BERTH_FAULT="+point+"=kill").Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("child ended with %v, wanted SIGKILL", err)
			}
			s := open(t, root)
			if len(s.Problems()) != 0 {
				t.Errorf("problems: %v", s.Problems())
			}
			sound(t, s)
			_ = s.Close()
			t.Setenv("CRASH_HOST", host)
			if err := crashWork(root); err != nil {
				t.Fatal(err)
			}
			s = open(t, root)
			for _, img := range s.List() {
				if err := s.Remove(t.Context(), img.ID); err != nil {
					t.Error(err)
				}
			}
			if err := s.Sweep(t.Context()); err != nil || layersOnDisk(t, s) != 0 {
				t.Errorf("layers are left: %v", err)
			}
			sound(t, s)
		})
	}
}

func child(host, root, env string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=TestCrashAtEveryPoint")
	cmd.Env = append(os.Environ(), "CRASH_ROOT="+root, "CRASH_HOST="+host, env)
	return cmd
}

// crashWork passes every step of the store.
func crashWork(root string) error {
	s, err := Open(Config{Root: root})
	if err != nil {
		return err
	}
	defer s.Close()
	host, ctx := os.Getenv("CRASH_HOST"), context.Background()
	for _, tag := range []string{"v1", "v2"} {
		if _, err := s.Pull(ctx, PullRequest{Reference: host + "/app:" + tag}); err != nil {
			return err
		}
	}
	img, _ := s.Get(host + "/app:v2")
	s.mu.Lock() // as if v1 had been pushed anew: the tag moves
	rec := *s.images[img.ID]
	s.mu.Unlock()
	rec.Tags = []string{host + "/app:v1"}
	rec.PulledAt = time.Now()
	if _, err := s.commit(&rec); err != nil {
		return err
	}
	for i := 0; i < 300; i++ { // let the syncer through
		s.mu.Lock()
		done := s.images[img.ID].Durable
		s.mu.Unlock()
		if done {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return s.Remove(ctx, img.ID)
}
