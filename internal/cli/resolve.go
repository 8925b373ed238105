package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// subject is something that a person may name: by its id, the beginning of it, or one of its names.
type subject struct {
	id    string
	names []string
	rank  uint64 // of two with the same name in the same place the higher one is meant
	place string
}

// pick finds the one subject that word means. Whole ids win over names, and names over beginnings of ids.
func pick(kind, word string, all []subject) (string, error) {
	if strings.TrimPrefix(word, "sha256:") == "" { // the beginning of every id: a script's variable that is not set
		return "", fail.New(errdefs.ErrInvalidArgument, "%q names no %s: say its name, its id or the beginning of its id",
			word, kind)
	}
	for _, match := range []func(subject) bool{
		func(s subject) bool { return s.id == word },
		func(s subject) bool { return slices.Contains(s.names, word) },
		func(s subject) bool {
			return strings.HasPrefix(strings.TrimPrefix(s.id, "sha256:"), strings.TrimPrefix(word, "sha256:"))
		},
	} {
		var found []subject
		for _, s := range all {
			if match(s) {
				found = append(found, s)
			}
		}
		found = newest(found)
		switch len(found) {
		case 0:
			continue
		case 1:
			return found[0].id, nil
		}
		return "", &ambiguousError{kind, word, found}
	}
	return "", &unknownError{kind, word}
}

// newest leaves of each place only what has the highest rank: of a container that was restarted, its last attempt.
func newest(found []subject) []subject {
	return slices.DeleteFunc(slices.Clone(found), func(s subject) bool {
		return s.place != "" && slices.ContainsFunc(found, func(o subject) bool {
			return o.place == s.place && o.rank > s.rank
		})
	})
}

type unknownError struct{ kind, word string }

func (e *unknownError) Error() string {
	list := map[string]string{"container": "berth ps -a", "pod": "berth pods", "image": "berth images",
		"container or pod": "berth ps -a and berth pods"}[e.kind]
	if list == "" {
		list = "berth ps -a, berth pods and berth images"
	}
	return fmt.Sprintf("there is no %s %q; see %s", e.kind, e.word, list)
}

// Unwrap returns the kind.
func (e *unknownError) Unwrap() error { return errdefs.ErrNotFound }

type ambiguousError struct {
	kind, word string
	found      []subject
}

func (e *ambiguousError) Error() string {
	which := make([]string, len(e.found))
	for i, s := range e.found {
		which[i] = short(s.id)
		if len(s.names) > 0 {
			which[i] += " (" + s.names[len(s.names)-1] + ")"
		}
	}
	return fmt.Sprintf("more than one %s is meant by %q: %s", e.kind, e.word, strings.Join(which, ", "))
}

// Unwrap returns the kind.
func (e *ambiguousError) Unwrap() error { return errdefs.ErrInvalidArgument }

// node is what the daemon has of pods and containers, at one moment.
type node struct {
	pods       []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
}

func (c *client) survey(ctx context.Context) (*node, error) {
	pods, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	containers, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	return &node{pods.GetItems(), containers.GetContainers()}, nil
}

func (n *node) pod(id string) *runtimeapi.PodSandbox {
	for _, p := range n.pods {
		if p.GetId() == id {
			return p
		}
	}
	return nil
}

func (n *node) podSubjects() []subject {
	all := make([]subject, 0, len(n.pods))
	for _, p := range n.pods {
		m := p.GetMetadata()
		names := []string{m.GetName(), m.GetNamespace() + "/" + m.GetName()}
		all = append(all, subject{p.GetId(), names, uint64(m.GetAttempt()), placeOf(m)})
	}
	return all
}

// placeOf tells a pod from others. All its sandboxes have it in common.
func placeOf(m *runtimeapi.PodSandboxMetadata) string {
	return m.GetNamespace() + "/" + m.GetName() + "/" + m.GetUid()
}

// samePod reports whether two sandboxes are of the same pod of berth run. There are two where berth start did not get
// to the end.
func samePod(a, b *runtimeapi.PodSandbox) bool {
	return a != nil && b != nil && madeByRun(a) && madeByRun(b) && placeOf(a.GetMetadata()) == placeOf(b.GetMetadata())
}

func (n *node) containerSubjects() []subject {
	all := make([]subject, 0, len(n.containers))
	for _, c := range n.containers {
		m, s := c.GetMetadata(), subject{id: c.GetId(), rank: uint64(c.GetMetadata().GetAttempt())}
		s.place = c.GetPodSandboxId() + "/" + m.GetName()
		s.names = []string{m.GetName()}
		if p := n.pod(c.GetPodSandboxId()).GetMetadata(); p != nil {
			s.place = placeOf(p) + "/" + m.GetName()
			s.rank += uint64(p.GetAttempt()) << 32
			inPod := p.GetName() + "/" + m.GetName()
			s.names = append(s.names, inPod, p.GetNamespace()+"/"+inPod)
		}
		all = append(all, s)
	}
	return all
}

// container finds the id of the container that word means.
func (c *client) container(ctx context.Context, word string) (string, error) {
	n, err := c.survey(ctx)
	if err != nil {
		return "", err
	}
	return pick("container", word, n.containerSubjects())
}

// target is a pod, or one container of a pod that lives on without it.
type target struct{ pod, container string }

// target finds what a command means that takes containers and pods alike. The container of "berth run" stands for its
// pod, which was made for it alone.
func (n *node) target(word string) (target, error) {
	pod, podErr := pick("pod", word, n.podSubjects())
	container, err := pick("container or pod", word, n.containerSubjects())
	if err != nil {
		if podErr == nil {
			return target{pod: pod}, nil
		}
		if isAmbiguous(podErr) && !isAmbiguous(err) {
			return target{}, podErr
		}
		return target{}, err
	}
	own := n.podOf(container)
	if standsForPod(own, n.containerOf(container)) {
		switch {
		case podErr != nil:
			return target{pod: own.GetId(), container: container}, nil
		case pod == own.GetId(), samePod(own, n.pod(pod)):
			return target{pod: pod, container: container}, nil
		}
	}
	if podErr == nil && pod != "" {
		return target{}, &ambiguousError{"container or pod", word, []subject{
			{id: container, names: []string{"container"}}, {id: pod, names: []string{"pod"}}}}
	}
	return target{pod: "", container: container}, nil
}

// standsForPod says that who names the container means the pod: it is the one that berth run made the pod for.
func standsForPod(p *runtimeapi.PodSandbox, c *runtimeapi.Container) bool {
	return madeByRun(p) && c.GetMetadata().GetName() == p.GetMetadata().GetName()
}

// containerOf returns the container with that id, nil when there is none.
func (n *node) containerOf(id string) *runtimeapi.Container {
	for _, c := range n.containers {
		if c.GetId() == id {
			return c
		}
	}
	return nil
}

func isAmbiguous(err error) bool {
	_, ok := err.(*ambiguousError)
	return ok
}

func (n *node) podOf(container string) *runtimeapi.PodSandbox {
	return n.pod(n.containerOf(container).GetPodSandboxId())
}

// image finds the id of the image that word means: a reference as the daemon understands it, or an id.
func (c *client) image(ctx context.Context, word string) (*runtimeapi.Image, error) {
	resp, err := c.images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: word}})
	if err == nil && resp.GetImage() != nil {
		return resp.GetImage(), nil
	}
	list, listErr := c.images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if listErr != nil {
		return nil, listErr
	}
	var all []subject
	for _, i := range list.GetImages() {
		all = append(all, subject{id: i.GetId(), names: append(slices.Clone(i.GetRepoTags()), i.GetRepoDigests()...)})
	}
	id, pickErr := pick("image", word, all)
	if pickErr != nil {
		return nil, pickErr
	}
	for _, i := range list.GetImages() {
		if i.GetId() == id {
			return i, nil
		}
	}
	return nil, &unknownError{"image", word}
}
