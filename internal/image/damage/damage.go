// Package damage says what is wrong with the files of a layer on the disk.
package damage

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/image/layer"
)

// Advice is what a person can do about a damaged layer.
const Advice = "`berth check --repair` fetches the layer again"

// Differences says which files made the tar of the layer in dir come out different.
func Differences(ctx context.Context, dir string) error {
	const most = 3
	var found []string
	err := layer.Verify(ctx, dir, func(path, problem string) { found = append(found, path+" "+problem) })
	if err != nil {
		return fail.New(errdefs.ErrDataLoss, "its files have changed on disk, and which of them cannot be told: %w: %s", err,
			Advice)
	}
	if len(found) == 0 {
		found = []string{"what is kept of its tar was damaged"}
	}
	if n := len(found); n > most {
		found = append(found[:most], fmt.Sprintf("and %d more", n-most))
	}
	return fail.New(errdefs.ErrDataLoss, "its files have changed on disk: %s: %s", strings.Join(found, ", "), Advice)
}
