package layer

import (
	"math"

	"berth/internal/limit"
	"berth/internal/room"
)

// Limits bound what one layer may become, and what it may cost. Zero is no limit.
type Limits struct {
	Bytes   int64 // the sum of its files, holes included, and 4 KiB for each file and directory
	Entries int   // entries of the tar, and directories that none of them describes
	// Memory is for what is kept of a layer until it is finalized: its directories, hard links and their attributes.
	Memory int64
	// Floor is what must stay free of the file system that the layer is written to.
	Floor room.Floor
}

// The bounds of single entries. The kernel takes no more.
const (
	maxPath   = 4096 // bytes of a path, with the NUL at its end
	maxLinks  = 255  // symlinks that a path leads through
	inodeCost = 4096 // bytes of the disk that an inode is counted as
)

// quota is how much of something a layer may still use.
type quota struct {
	budget limit.Budget // Used counts what the layer has taken
}

func newQuota(b limit.Budget) *quota {
	if b.Limit <= 0 {
		b.Limit = math.MaxInt64
	}
	return &quota{b}
}

// take uses n more, or says that there is not so much left.
func (q *quota) take(n int64) error {
	if n < 0 || n > q.budget.Limit-q.budget.Used {
		return q.budget.Exceeded()
	}
	q.budget.Used += n
	return nil
}
