package annotation

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/quantity"
)

// Bounds are what a runtime handler says of a quantity that a pod may ask for.
type Bounds struct {
	Usual int64  // what holds where no annotation says anything; 0 is no limit
	Most  int64  // what may be asked for; 0 is Usual, and no bound where that is 0 too
	Least uint64 // what makes sense
	// UsualKey and MostKey are the keys of the configuration that set them, for errors.
	UsualKey, MostKey string
}

// StorageBytes is how many bytes each container of a pod may write to its root; 0 is no limit.
func StorageBytes(all map[string]string, b Bounds) (uint64, error) {
	return b.read(all, KeyStorageBytes)
}

// StorageInodes is how many files and directories each container of a pod may have in its root; 0 is no limit.
func StorageInodes(all map[string]string, b Bounds) (uint64, error) {
	return b.read(all, KeyStorageInodes)
}

// LogRate is how many bytes a second may be written to the log of a pod's container of that name, or of any container
// where the name is empty; 0 is no limit. An annotation for the one container goes before that for all.
func LogRate(all map[string]string, container string, b Bounds) (uint64, error) {
	return b.read(all, named(all, container, KeyLogRateOf, KeyLogRate))
}

// LogBurst is how many bytes may be written at once, as LogRate.
func LogBurst(all map[string]string, container string, b Bounds) (uint64, error) {
	return b.read(all, named(all, container, KeyLogBurstOf, KeyLogBurst))
}

// named is the key that holds for a container.
func named(all map[string]string, container, own, usual string) string {
	if _, said := all[own+container]; said && container != "" {
		return own + container
	}
	return usual
}

// LogContainers are the names of containers for which a pod has annotations of their own about logs.
func LogContainers(all map[string]string) []string {
	found := map[string]bool{}
	for key := range all {
		for _, own := range []string{KeyLogRateOf, KeyLogBurstOf} {
			if container, is := strings.CutPrefix(key, own); is {
				found[container] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// read is the quantity that an annotation asks for, or what is usual. More than the handler allows is refused.
func (b Bounds) read(all map[string]string, key string) (uint64, error) {
	value, said := all[key]
	if !said {
		return uint64(b.Usual), nil
	}
	n, err := quantity.Parse(value)
	bound := b.MostKey
	if b.Most == 0 {
		bound = b.UsualKey
	}
	most := cmp.Or(b.Most, b.Usual)
	switch {
	case err != nil:
		return 0, invalid(key, value, err)
	case n < b.Least || n > math.MaxInt64:
		return 0, fail.New(errdefs.ErrInvalidArgument, "annotation %s: %q: at least %d, at most 8 Ei", key, value, b.Least)
	case most > 0 && n > uint64(most):
		return 0, fail.New(errdefs.ErrInvalidArgument,
			"annotation %s: %q is more than the %d that %s allows pods of this runtime handler", key, value, most, bound)
	}
	return n, nil
}

// ShmSize is how many bytes a pod's /dev/shm has: as its annotation says, or else usual. most is what the handler
// allows; 0 is any size.
func ShmSize(all map[string]string, usual, most int64) (int64, error) {
	key := KeyShmSize
	value, said := all[key]
	if !said {
		key = keyCRIOShmSize
		value, said = all[key]
	}
	if !said {
		return usual, nil
	}
	size, err := quantity.Parse(value)
	switch {
	case err != nil:
		return 0, invalid(key, value, err)
	case size == 0 || size > math.MaxInt64: // 0 would be half of the node's memory
		return 0, fail.New(errdefs.ErrInvalidArgument, "annotation %s: %q: /dev/shm has from 1 byte to 8 EiB", key, value)
	case most > 0 && size > uint64(most):
		return 0, fail.New(errdefs.ErrInvalidArgument,
			"annotation %s: %q is more than the %d bytes that max_shm_size allows pods of this runtime handler",
			key, value, most)
	}
	return int64(size), nil
}
