package cri

import (
	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/sandbox"
)

// end stops or removes what the name means. Ending what is not there succeeds, as CRI requires; but what do does not
// find on its way, such as the pod's runtime handler, is a failure, which a kubelet must not take for a pod that is not
// there.
func end(resolve func(name string) (sandbox.ID, error), name string, do func(sandbox.ID) error) error {
	id, err := resolve(name)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = do(id); errdefs.IsNotFound(err) {
		return fail.New(errdefs.ErrFailedPrecondition, "%w", err)
	}
	return err
}
