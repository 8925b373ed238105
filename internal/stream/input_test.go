package stream

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/limit"
)

// TestInputIsBounded has a client wait once a command has read too little, and go on when it reads, or never will.
func TestInputIsBounded(t *testing.T) {
	for name, goesOn := range map[string]func(*input){
		"read":      func(i *input) { _, _ = i.WriteTo(io.Discard) },
		"ended":     (*input).finish,
		"abandoned": (*input).abandon,
		"refused":   func(i *input) { _, _ = i.WriteTo(refuses{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := &backlogs{}
				i, written := newInput(&backlog{of: all}), false
				go func() {
					_, _ = i.Write(make([]byte, limit.SessionInput.Limit*2))
					written = true
				}()
				synctest.Wait()
				if n := i.waiting(); written || n != int(limit.SessionInput.Limit) {
					t.Fatalf("%d bytes are kept, all of them: %v", n, written)
				}
				go goesOn(i)
				synctest.Wait()
				if !written {
					t.Error("the client still waits")
				}
				i.finish()
				_, _ = io.Copy(io.Discard, i)
				if all.used.Load() != 0 || i.backlog.used != 0 {
					t.Errorf("%d bytes are counted of nothing, of them %d of all sessions'", i.backlog.used, all.used.Load())
				}
			})
		})
	}
}

// waiting is how many bytes wait for the reader.
func (i *input) waiting() (n int) {
	for _, b := range i.blocks {
		n += b.to - b.from
	}
	return n
}

// refuses is a command that takes nothing.
type refuses struct{}

func (refuses) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }

// TestInputIsReadToItsEnd when that has come before the command reads, and is waited for.
func TestInputIsReadToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInput(&backlog{of: &backlogs{}})
		_, _ = i.Write([]byte("hello"))
		i.finish()
		began := time.Now()
		i.awaitRead(time.Second)
		if waited := time.Since(began); waited != time.Second {
			t.Errorf("what nobody reads is waited for %v", waited)
		}
		got := make([]byte, 9)
		n, err := i.Read(got)
		if string(got[:n]) != "hello" || err != nil {
			t.Errorf("%q, %v", got[:n], err)
		}
		done := false
		go func() {
			i.awaitRead(time.Hour)
			done = true
		}()
		synctest.Wait()
		if done {
			t.Error("it is read before the reader has come back")
		}
		if n, err := i.Read(got); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%d, %v after the end", n, err)
		}
		synctest.Wait()
		if !done {
			t.Error("it is not read although the reader has come back")
		}
	})
}
