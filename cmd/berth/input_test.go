package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"berth/internal/admin"
	"berth/test/timeouts"
)

// says is a client that says these things, and then no more.
func says(all ...*admin.AttachInput) func() (*admin.AttachInput, error) {
	return func() (*admin.AttachInput, error) {
		if len(all) == 0 {
			return nil, io.EOF
		}
		next := all[0]
		all = all[1:]
		return next, nil
	}
}

func TestSizeDoesNotWaitForWhatIsTyped(t *testing.T) {
	in, sized := newTypeahead(), make(chan admin.Size, 1)
	page := []byte(strings.Repeat("x", 16<<10))
	go input(
		says(&admin.AttachInput{Stdin: page}, &admin.AttachInput{Stdin: page},
			&admin.AttachInput{Resize: &admin.Size{Width: 7, Height: 3}},
			&admin.AttachInput{CloseStdin: true}), in, func(s admin.Size) { sized <- s })
	select {
	case s := <-sized:
		if s.Width != 7 || s.Height != 3 {
			t.Errorf("the size is %v", s)
		}
	case <-time.After(timeouts.For(time.Minute)):
		t.Fatal("the size waits for somebody to read what was typed")
	}
	if text, err := io.ReadAll(in); err != nil || len(text) != 2*len(page) {
		t.Errorf("%d bytes were typed, %v", len(text), err)
	}
}

func TestTypedWithoutBounds(t *testing.T) {
	in, typed := newTypeahead(), make(chan int, 100)
	go func() {
		for n := range 10 {
			in.write(make([]byte, 32<<10))
			typed <- n
		}
	}()
	for range 3 {
		<-typed
	}
	select {
	case n := <-typed:
		t.Errorf("message %d did not wait", n)
	case <-time.After(50 * time.Millisecond):
	}
	if err := in.Close(); err != nil { // whoever waits is let go
		t.Error(err)
	}
	for range 7 {
		<-typed
	}
	if n, err := in.Read(make([]byte, 1)); n != 0 || err != io.ErrClosedPipe {
		t.Errorf("what is closed has %d bytes, %v", n, err)
	}
}

func TestTypedByOneWhoIsGone(t *testing.T) {
	in, gone := newTypeahead(), errors.New("gone")
	go input(func() (*admin.AttachInput, error) { return nil, gone }, in, nil)
	if _, err := io.ReadAll(in); err != gone {
		t.Errorf("the input ends with %v", err)
	}
}
