package session

import (
	"testing"

	"berth/internal/limit"
)

// TestOutputsShareTheirRoom has execs print more than all may keep: each has its own beginning, and ends without a gap.
func TestOutputsShareTheirRoom(t *testing.T) {
	of := &outputs{}
	write := func(c *capture, n int) {
		t.Helper()
		if got, err := c.Write(make([]byte, n)); got != n || err != nil {
			t.Fatalf("%d of %d, %v", got, n, err)
		}
	}
	of.used.Store(limit.ExecOutputs.Limit - 1000)
	first, second := &capture{of: of}, &capture{of: of}
	write(first, ownOutput)
	write(second, ownOutput+600)
	if of.used.Load() != limit.ExecOutputs.Limit-400 || second.lost != 0 {
		t.Errorf("%d are used, %d lost", of.used.Load(), second.lost)
	}
	write(first, 500)
	if len(first.data) != ownOutput+400 || first.lost != 100 {
		t.Errorf("%d are kept, %d lost", len(first.data), first.lost)
	}
	second.release()
	second.release()
	write(first, 10)
	if len(first.data) != ownOutput+400 || first.lost != 110 {
		t.Errorf("behind a gap %d are kept, %d lost", len(first.data), first.lost)
	}
	first.release()
	if got := of.used.Load(); got != limit.ExecOutputs.Limit-1000 {
		t.Errorf("%d are used after the end", got)
	}
}

func TestOutputFitsIntoOneAnswer(t *testing.T) {
	half, all := maxOutput()/2, maxOutput()
	for _, c := range []struct{ out, err, wantOut, wantErr int }{
		{0, 0, 0, 0},
		{half, half, half, half},
		{all, 0, all, 0},
		{0, all, 0, all},
		{all, 100, all - 100, 100},
		{100, all, 100, all - 100},
		{all, all, half, half},
		{half + 1, half, half, half},
		{half + 5, half - 5, half + 5, half - 5},
	} {
		o := Output{Stdout: make([]byte, c.out), Stderr: make([]byte, c.err)}
		lost := o.fit()
		if len(o.Stdout) != c.wantOut || len(o.Stderr) != c.wantErr || lost != int64(c.out+c.err-c.wantOut-c.wantErr) {
			t.Errorf("of %d and %d bytes %d and %d are kept, %d lost", c.out, c.err, len(o.Stdout), len(o.Stderr), lost)
		}
	}
}
