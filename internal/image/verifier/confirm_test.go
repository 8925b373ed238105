package verifier

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/test/timeouts"
)

// counting makes a directory with one program that notes each time that it is asked, and then does as script says.
func counting(t *testing.T, script string) (d *Dir, asked func() int) {
	t.Helper()
	notes := filepath.Join(t.TempDir(), "notes")
	d = directory(t, map[string]string{"v": "echo $" + NamespaceVariable + " >>" + notes + "; " + script})
	return d, func() int {
		text, err := os.ReadFile(notes)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "\n")
	}
}

func confirm(t *testing.T, d *Dir, namespace string) error {
	t.Helper()
	return d.Confirm(t.Context(), Question{Name: name, Descriptor: desc, Namespace: namespace})
}

// TestConfirmAsksOnce wants an acceptance to be remembered for its question, and for the very programs that gave it.
func TestConfirmAsksOnce(t *testing.T) {
	d, asked := counting(t, "exit 0")
	want := func(n int, why string) {
		t.Helper()
		if got := asked(); got != n {
			t.Errorf("%s: asked %d times, wanted %d", why, got, n)
		}
	}
	for range 3 {
		if err := confirm(t, d, "a"); err != nil {
			t.Fatal(err)
		}
	}
	want(1, "the same three times")
	if err := confirm(t, d, "b"); err != nil {
		t.Fatal(err)
	}
	want(2, "another namespace")
	accepts(t, d) // a pull asks whatever is known
	want(3, "a pull")
	if err := confirm(t, d, ""); err != nil {
		t.Fatal(err)
	}
	want(3, "what a pull has asked")
	add(t, d, "w", "exit 0")
	if err := confirm(t, d, "a"); err != nil {
		t.Fatal(err)
	}
	want(4, "with another program beside")
	add(t, d, "w", "exit  1") // as long as before, and not a moment later
	if err := confirm(t, d, "a"); err == nil {
		t.Error("what a program in place of another refuses was accepted")
	}
}

// TestConfirmRemembersNoRefusal has a program change its mind: who was refused asks again.
func TestConfirmRemembersNoRefusal(t *testing.T) {
	flag := filepath.Join(t.TempDir(), "flag")
	d, asked := counting(t, "test -e "+flag)
	for range 2 {
		if err := confirm(t, d, "a"); err == nil || !strings.Contains(err.Error(), `verifier "v" refuses it`) {
			t.Errorf("got %v", err)
		}
	}
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := confirm(t, d, "a"); err != nil || asked() != 3 {
		t.Errorf("%v after %d times", err, asked())
	}
}

// TestConfirmTogether has many ask the same at once, the first of whom leaves: the rest get an answer, from few runs.
func TestConfirmTogether(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	d, asked := counting(t, "while ! test -e "+gate+"; do sleep 0.01; done")
	first, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	q := Question{Name: name, Descriptor: desc, Namespace: "a"}
	go func() { left <- d.Confirm(first, q) }()
	waitFor(t, func() bool { return asked() == 1 })
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			if err := d.Confirm(t.Context(), q); err != nil {
				t.Error(err)
			}
		})
	}
	leave()
	if err := <-left; err != context.Canceled {
		t.Errorf("who left: %v", err)
	}
	waitFor(t, func() bool { return asked() == 2 })
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	group.Wait()
	if asked() > 3 { // one may have come between the first's end and its answer
		t.Errorf("asked %d times", asked())
	}
}

// TestConfirmOfOneNamespaceDelaysNoOther has programs hang for all images of one namespace.
func TestConfirmOfOneNamespaceDelaysNoOther(t *testing.T) {
	d, asked := counting(t, `if test "$`+NamespaceVariable+`" = bad; then sleep 1000; fi`)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for i := range 3 * perNamespace {
		group.Go(func() {
			q := Question{Name: fmt.Sprint(name, i), Descriptor: desc, Namespace: "bad"}
			if err := d.Confirm(ctx, q); err != context.Canceled {
				t.Errorf("got %v", err)
			}
		})
	}
	waitFor(t, func() bool { return asked() == perNamespace })
	if err := confirm(t, d, "good"); err != nil {
		t.Error(err)
	}
	if got := asked(); got != perNamespace+1 {
		t.Errorf("%d programs were started, wanted %d of one namespace and one of the other", got, perNamespace)
	}
	cancel()
	group.Wait()
	waitFor(t, func() bool {
		d.turns.mu.Lock()
		defer d.turns.mu.Unlock()
		return len(d.turns.slots) == 0
	})
}

// TestAnswersAreBounded asks ten thousand questions.
func TestAnswersAreBounded(t *testing.T) {
	var a answers
	key := func(i int) [sha256.Size]byte { return sha256.Sum256(fmt.Append(nil, i)) }
	for i := range 10000 {
		a.add(key(i))
		a.add(key(i))
	}
	if len(a.known) != mostAnswers || len(a.order) != mostAnswers {
		t.Errorf("%d answers, %d in order", len(a.known), len(a.order))
	}
	if !a.has(key(9999)) || a.has(key(0)) {
		t.Error("it does not keep the last")
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(timeouts.For(20 * time.Second)); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come")
		}
	}
}
