package layer

import (
	"math"

	"berth/internal/diskspace"
	"berth/internal/limit"
)

// Limits bound the size of one layer and what unpacking it may use. Zero is no limit.
type Limits struct {
	Bytes   int64 // the sum of its files, holes included, and 4 KiB for each file and directory
	Entries int   // the number of the tar's entries; Memory bounds the directories that they imply
	// Memory bounds what is held in memory until the layer is finalized: its directories, hard links and attributes.
	Memory int64
	// Floor is the space that must stay free on the layer's file system.
	Floor diskspace.Floor
}

// The bounds of single entries, which are the kernel's.
const (
	maxPath   = 4096 // bytes of a path, with the NUL at its end
	maxLinks  = 255  // symlinks on the way of a path
	inodeCost = 4096 // bytes that are charged for an inode
)

// quota counts how much of a budget a layer has used.
type quota struct {
	budget limit.Budget // Used counts what the layer has taken
}

func newQuota(b limit.Budget) *quota {
	if b.Limit <= 0 {
		b.Limit = math.MaxInt64
	}
	return &quota{b}
}

// take uses n more, or returns an error when less than n is left.
func (q *quota) take(n int64) error {
	if n < 0 || n > q.budget.Limit-q.budget.Used {
		return q.budget.Exceeded()
	}
	q.budget.Used += n
	return nil
}
