package layer

import (
	"fmt"
	"math"
)

// Limits bound what one layer may become, and what it may cost. Zero is no limit.
type Limits struct {
	Bytes   int64 // the sum of its files, holes included, and 4 KiB for each file and directory
	Entries int   // entries of the tar, and directories that none of them describes
	// Memory is for what is kept of a layer until it is settled: its directories, hard links and their attributes.
	Memory int64
}

// The bounds of single entries. The kernel takes no more.
const (
	maxPath   = 4096     // bytes of a path or the target of a link, with the NUL at its end
	maxXattr  = 64 << 10 // bytes of an extended attribute
	maxSteps  = 4096     // components that a path leads through, those of symlinks among them
	maxLinks  = 255      // symlinks that a path leads through
	inodeCost = 4096     // bytes of the disk that an inode is counted as
)

// A LimitError says which bound a layer broke.
type LimitError struct{ What string }

func (e *LimitError) Error() string { return e.What }

// exceeds says what has how much of a unit, where limit is the most, and what can be done about it.
func exceeds(has string, found, limit int64, unit, remedy string) error {
	return &LimitError{fmt.Sprintf("%s %d %s, more than the %d allowed: %s", has, found, unit, limit, remedy)}
}

// What to do about a layer that breaks a bound.
const (
	raiseMemory = "make fewer directories and hard links in this layer, or raise images.max_layer_memory_bytes"
	raiseBytes  = "make the layer smaller, or raise images.max_layer_bytes"
	raiseCount  = "make fewer files and directories in this layer, or raise images.max_layer_entries"
	rebuild     = "build the image without it: the kernel takes no more"
)

// quota is how much of something a layer may still use.
type quota struct {
	has, unit, remedy string
	limit, used       int64
}

func newQuota(has string, limit int64, unit, remedy string) *quota {
	if limit <= 0 {
		limit = math.MaxInt64
	}
	return &quota{has: has, unit: unit, remedy: remedy, limit: limit}
}

// take uses n more, or says that there is not so much left.
func (q *quota) take(n int64) error {
	if n < 0 || n > q.limit-q.used {
		return exceeds(q.has, q.used+max(n, 0), q.limit, q.unit, q.remedy)
	}
	q.used += n
	return nil
}
