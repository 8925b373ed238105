package pod

import (
	"cmp"
	"math"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/quantity"
)

// limitAsk is one annotation, and what the handler says of the same.
type limitAsk struct {
	annotation       string
	usual, most      int64
	least            uint64
	mostKey, keyName string
}

// annotated is the limit that a pod's annotation asks for, or what is usual. More than the handler allows is refused.
func annotated(annotations map[string]string, a limitAsk) (uint64, error) {
	value, said := annotations[a.annotation]
	if !said {
		return uint64(a.usual), nil
	}
	n, err := quantity.Parse(value)
	key := a.mostKey
	if a.most == 0 {
		key = a.keyName
	}
	most := cmp.Or(a.most, a.usual)
	switch {
	case err != nil:
		return 0, fail.New(errdefs.ErrInvalidArgument, "annotation %s: %q: %w", a.annotation, value, err)
	case n < a.least || n > math.MaxInt64:
		return 0, fail.New(errdefs.ErrInvalidArgument, "annotation %s: %q: at least %d, at most 8 Ei", a.annotation, value,
			a.least)
	case most > 0 && n > uint64(most):
		return 0, fail.New(errdefs.ErrInvalidArgument,
			"annotation %s: %q is more than the %d that %s allows pods of this runtime handler", a.annotation, value, most, key)
	}
	return n, nil
}
