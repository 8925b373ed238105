package image

import (
	"os"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/test/patience"
)

// TestLeases says which layers a sweep may take.
func TestLeases(t *testing.T) {
	var l leases
	l.admit("a")
	l.admit("b")
	if release, all := l.hold("a", "none"); all {
		t.Error("what is not there was held")
	} else {
		release()
	}
	release, all := l.hold("a", "b")
	epoch := l.begin()
	if !all || l.expel("a", epoch) {
		t.Error("a layer was taken from whom it serves")
	}
	release()
	release()
	if l.idle("b", epoch) || l.expel("b", epoch) {
		t.Error("a layer was taken in the epoch in which it was released: a container may have it")
	}
	if epoch = l.begin(); !l.idle("b", epoch) || !l.expel("b", epoch) {
		t.Error("an idle layer stays")
	}
	if _, all := l.hold("b"); all {
		t.Error("held after it was taken")
	}
}

// TestUseWaitsForNoChange has a container start while a change of the store takes its time.
func TestUseWaitsForNoChange(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "1"))))
	s := open(t, t.TempDir())
	img := pull(t, s, host+"/a:v1")
	durable(t, s)
	s.catalog.mu.Lock() // somebody writes a record
	used := make(chan error, 1)
	go func() {
		_, release, err := s.Use(img.ID)
		if err == nil {
			release()
		}
		used <- err
	}()
	select {
	case err := <-used:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience.For(20 * time.Second)):
		t.Error("a container that starts waits for a change of the store")
	}
	s.catalog.mu.Unlock()
}

// TestUseOfWhatGoes uses an image whose layers the sweep is taking, and one that lost a layer.
func TestUseOfWhatGoes(t *testing.T) {
	host := startRegistry(t, "")
	push(t, host+"/a:v1", imageOf(t, gz(t, file("a", "1"))))
	s := open(t, t.TempDir())
	img := pull(t, s, host+"/a:v1")
	durable(t, s)
	if !s.catalog.leases.expel(img.Layers[0], s.catalog.leases.begin()) {
		t.Fatal("the layer is used")
	}
	if _, _, err := s.Use(img.ID); kindOf(err) != errdefs.ErrNotFound {
		t.Errorf("used without its layer: %v", err)
	}
	s.catalog.leases.admit(img.Layers[0])
	_, release, err := s.Use(img.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := s.Remove(t.Context(), img.ID); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.LayerDirs(img)[0]); err != nil {
		t.Errorf("swept from under its user: %v", err)
	}
}
