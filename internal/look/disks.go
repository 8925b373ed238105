package look

import (
	"context"
	"sync"
)

// Disks are as many disks as there are paths at which somebody looks at the moment. It is for files of which nobody
// knows which are on one disk: one that hangs must not keep the others from being looked at. The zero value has none.
type Disks struct {
	mu sync.Mutex // guards at
	at map[string]*lookedAt
}

// lookedAt is the disk of one path.
type lookedAt struct {
	*Disk
	users int // looks that wait to be allowed, or that have not ended
}

// WithinAt is Within for the disk of a path. A look is counted from before it begins until it has ended, so a caller
// that leaves first, or one that leaves before the look has begun, does not take the disk with it.
func WithinAt[T any](ctx context.Context, d *Disks, path string, ask func() (T, error)) (T, error) {
	disk := enter(d, path)
	if err := disk.take(ctx); err != nil {
		leave(d, path)
		var none T
		return none, err
	}
	return within(ctx, disk, ask, func() {
		disk.release()
		leave(d, path)
	})
}

func enter(d *Disks, path string) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.at[path]
	if l == nil {
		if d.at == nil {
			d.at = map[string]*lookedAt{}
		}
		l = &lookedAt{Disk: NewDisk()}
		d.at[path] = l
	}
	l.users++
	return l.Disk
}

func leave(d *Disks, path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.at[path]; l.users > 1 {
		l.users--
	} else {
		delete(d.at, path)
	}
}
