package pod

import "testing"

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
