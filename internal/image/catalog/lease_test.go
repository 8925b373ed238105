package catalog

import "testing"

// TestLeases says which layers a sweep may take.
func TestLeases(t *testing.T) {
	var l Leases
	l.admit("a")
	l.admit("b")
	if release, all := l.Hold("a", "none"); all {
		t.Error("what is not there was held")
	} else {
		release()
	}
	release, all := l.Hold("a", "b")
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
	if _, all := l.Hold("b"); all {
		t.Error("held after it was taken")
	}
}
