package diskspace

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Floor is what work must leave free of a file system, in percent of its bytes and of its inodes. None is 0.
type Floor struct {
	Percent int
	Key     string // of the configuration, for whom it stops
}

// lowError says that work would leave less free than its floor asks. It is a lack of room as a full disk is.
type lowError struct{ Floor }

func (e lowError) Error() string {
	return fmt.Sprintf("it would leave less than %d %% free, which %s keeps for pods", e.Percent, e.Key)
}

func (e lowError) Is(target error) bool { return target == unix.ENOSPC }

// Check reports whether the file system of dir would have less free than the floor asks when need bytes more are
// written. The error is an Error whose remedy, such as "remove images", comes first. A file system that tells no number
// of blocks or inodes has no such floor, nor has one that cannot be asked: what is written there says why.
func (f Floor) Check(dir string, need int64, remedy string) error {
	var st unix.Statfs_t
	if f.Percent <= 0 || unix.Statfs(dir, &st) != nil {
		return nil
	}
	blocks := uint64(max(need, 0)) / uint64(max(st.Bsize, 1))
	if !f.below(st.Bavail-min(blocks, st.Bavail), st.Blocks) && !f.below(st.Ffree, st.Files) {
		return nil
	}
	return &Error{Err: lowError{f}, Text: f.Advice(dir, remedy)}
}

// Advice is the text of an Error for a file system that has less free than the floor asks.
func (f Floor) Advice(dir, remedy string) string {
	return lack(dir) + ": " + remedy + ", make it larger, or lower " + f.Key
}

func (f Floor) below(free, all uint64) bool {
	return all > 0 && float64(free)*100 < float64(all)*float64(f.Percent)
}

// gaugeEvery is how much is written between two looks at a file system: little beside any floor, and enough that
// looking costs nothing beside writing.
const gaugeEvery = 1 << 20

// Gauge looks at a file system again and again while something writes there. Others may write there as well: what
// they take counts too.
type Gauge struct {
	Floor  Floor
	Dir    string
	Remedy string
	due    int64 // bytes until the next look
}

// Spend is told that n bytes are about to be written. The first look comes with the first of them.
func (g *Gauge) Spend(n int64) error {
	if g.due -= n; g.due > 0 {
		return nil
	}
	g.due = gaugeEvery
	return g.Floor.Check(g.Dir, n, g.Remedy)
}

// Write makes a Gauge a writer beside another, as io.MultiWriter and io.TeeReader take it.
func (g *Gauge) Write(p []byte) (int, error) { return len(p), g.Spend(int64(len(p))) }
