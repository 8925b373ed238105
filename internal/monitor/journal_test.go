package monitor

import (
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestJournalOfAnotherLayout finds a journal that a release to come has made, and says that it cannot read it.
func TestJournalOfAnotherLayout(t *testing.T) {
	dir := t.TempDir()
	j, err := makeJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	j.head.layout++
	j.close()
	if _, err := openJournal(dir); err == nil || !strings.Contains(err.Error(), "another layout") {
		t.Errorf("the error is %v", err)
	}
	if err := os.Truncate(filepath.Join(dir, journalFile), journalSize+page); err != nil {
		t.Fatal(err)
	}
	if _, err := openJournal(dir); err == nil || !strings.Contains(err.Error(), "another layout") {
		t.Errorf("of another size: %v", err)
	}
}

// TestDamagedJournal opens journals whose heads hold anything: each is refused, or its windows lie where they must.
func TestDamagedJournal(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewSource(1))
	sound := 0
	for range 2000 {
		j, err := makeJournal(dir)
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + r.Intn(3) { // a few bytes behind the layout
			j.mem[8+r.Intn(240)] = byte(r.Intn(256))
		}
		j.close()
		if j, err = openJournal(dir); err != nil {
			continue
		}
		sound++
		for n := 1; n <= 2; n++ {
			var w window
			w.open(j, n)
			done, taken := w.done.Load(), w.taken.Load()
			if done < windowStart(w.i) || taken < done || w.end < taken || w.end > windowEnd(w.i) {
				t.Fatalf("window %d is at %d, %d and %d", n, done, taken, w.end)
			}
		}
		b := j.note().batch
		if b.stream != 0 && (b.to < 0 || b.to > journalSize) {
			t.Fatalf("a batch goes to %d", b.to)
		}
		j.close()
	}
	if sound == 0 || sound == 2000 {
		t.Errorf("%d of 2000 heads made sense", sound)
	}
}

// TestRebase moves what is left of a window to its beginning, but not over itself.
func TestRebase(t *testing.T) {
	j, err := makeJournal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	var w window
	w.open(j, 2)
	start := windowStart(w.i)
	take := func(text string) {
		at := w.taken.Load()
		copy(j.mem[at:], text)
		j.head.taken[w.i][w.side] = at + int64(len(text))
		w.taken.Store(at + int64(len(text)))
	}
	take("0123456789")
	w.done.Store(start + 3)
	if w.rebase(); w.done.Load() != start+3 {
		t.Error("7 bytes were moved by 3")
	}
	w.done.Store(start + 6)
	w.rebase()
	if got := string(j.mem[w.done.Load():w.taken.Load()]); got != "6789" || w.done.Load() != start {
		t.Errorf("%q is left, at %d", got, w.done.Load()-start)
	}
	n := j.note()
	if n.done[w.i] != start || j.head.taken[w.i][n.side[w.i]] != start+4 {
		t.Error("the head does not say so")
	}
}
