//go:build berth_fault

package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"berth/internal/image/catalog"
	"berth/internal/record"
	"berth/test/timeouts"
)

// TestCrashChild is the process that a crash test kills.
func TestCrashChild(t *testing.T) {
	if os.Getenv("CRASH_ROOT") == "" {
		t.Skip("the crash tests run it")
	}
	if err := crashWork(); err != nil {
		t.Fatal(err)
	}
}

// worker passes every step of a store, and notes what it was promised on the way.
type worker struct {
	s       *Store
	flusher *record.Flusher
	host    string
}

// crashWork does all that a store can do, from the environment: CRASH_ROOT, CRASH_BOOT, CRASH_HOST (a registry),
// CRASH_ARCHIVE and CRASH_NOTES.
func crashWork() error {
	w := &worker{flusher: &record.Flusher{}, host: os.Getenv("CRASH_HOST")}
	if err := w.leaveOver(); err != nil {
		return err
	}
	cfg := standard(os.Getenv("CRASH_ROOT"))
	cfg.BootID, cfg.Dirty = os.Getenv("CRASH_BOOT"), w.flusher.Dirty
	s, err := Open(cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	w.s = s
	for _, step := range []func() error{w.pull, w.durable, w.moveTag, w.importArchive, w.durable, w.repair, w.durable,
		w.remove, w.sweep} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// leaveOver has an earlier boot leave an image that never became durable.
func (w *worker) leaveOver() error {
	root := os.Getenv("CRASH_ROOT")
	cfg := standard(root)
	cfg.BootID = "zero"
	s, err := Open(cfg)
	if err != nil {
		return err
	}
	defer s.Close() // what it has open would keep the volume of a power cut from being unmounted
	s.stop()
	s.work.Wait() // no syncer any more
	s.ctx = context.Background()
	_, err = s.Pull(context.Background(), PullRequest{Reference: w.host + "/app:v0"})
	return err
}

// note writes what the disk or an answer promised of an image. Only the last word on an image counts.
func (w *worker) note(word, id string) error {
	f, err := os.OpenFile(os.Getenv("CRASH_NOTES"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil // the undisturbed child needs none
	}
	_, err = fmt.Fprintln(f, word, id)
	return errors.Join(err, f.Close())
}

func (w *worker) pull() error {
	for _, tag := range []string{"v1", "v2", "v3"} {
		img, err := w.s.Pull(context.Background(), PullRequest{Reference: w.host + "/app:" + tag})
		if err == nil {
			err = w.note("there", img.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// durable waits until the store says that all images are on the disk, and the flusher has had its turn.
func (w *worker) durable() error {
	for deadline := time.Now().Add(timeouts.For(2 * time.Minute)); ; time.Sleep(2 * time.Millisecond) {
		done := true
		for _, img := range w.s.List() {
			done = done && img.Durable
		}
		if done {
			break
		}
		if time.Now().After(deadline) {
			return errors.New("the images do not become durable")
		}
	}
	if err := w.flusher.Flush(); err != nil {
		return err
	}
	for _, img := range w.s.List() {
		if err := w.note("durable", img.ID); err != nil {
			return err
		}
	}
	return nil
}

// moveTag gives v1's tag to v2, as if the tag had been pushed anew.
func (w *worker) moveTag() error {
	img, _ := w.s.Get(w.host + "/app:v2")
	rec := *w.s.catalog.Record(img.ID)
	rec.Tags, rec.PulledAt = []string{w.host + "/app:v1"}, time.Now()
	_, err := catalog.Commit(w.s.catalog, &rec)
	return err
}

func (w *worker) importArchive() error {
	f, err := os.Open(os.Getenv("CRASH_ARCHIVE"))
	if err != nil {
		return err
	}
	defer f.Close()
	imgs, err := w.s.Import(context.Background(), f, nil)
	if err != nil {
		return err
	}
	return w.note("there", imgs[0].ID)
}

// repair breaks the upper layer of v2, so that the disk knows, and has it mended.
func (w *worker) repair() error {
	img, _ := w.s.Get(w.host + "/app:v2")
	if err := w.note("damaged", img.ID); err != nil {
		return err
	}
	if err := os.Remove(w.s.LayerDirs(img)[0] + "/y"); err != nil {
		return err
	}
	if err := w.s.syncer.Flush(); err != nil {
		return err
	}
	var wrong error
	err := w.s.Check(context.Background(), true, func(f Finding) {
		if !f.Repaired {
			wrong = fmt.Errorf("not repaired: %+v", f)
		}
	})
	return errors.Join(wrong, err)
}

func (w *worker) remove() error {
	img, ok := w.s.Get("imported:v1")
	if !ok {
		return errors.New("the imported image is not there")
	}
	if err := w.note("removing", img.ID); err != nil {
		return err
	}
	if err := w.s.Remove(context.Background(), img.ID); err != nil {
		return err
	}
	if err := w.flusher.Flush(); err != nil {
		return err
	}
	return w.note("gone", img.ID)
}

// sweep removes an image whose layers are held, and collects them when they are not any more.
func (w *worker) sweep() error {
	img, release, err := w.s.Use(w.host + "/app:v2")
	if err != nil {
		return err
	}
	defer release()
	if err := w.note("removing", img.ID); err != nil {
		return err
	}
	if err := w.s.Remove(context.Background(), img.ID); err != nil {
		return err
	}
	release()
	return w.s.Sweep(context.Background())
}
