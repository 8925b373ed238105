package cli

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/fail"
)

// filter says which containers or pods a list has. What it does not say matches everything.
type filter struct {
	texts                            []string // KEY=VALUE, of --filter
	id, state, image, pod, namespace anyOf
	name                             anyOf
	labels                           []string // all of them
	exited                           anyOf    // exit codes

	named []*regexp.Regexp
}

// anyOf are values of one key, of which one has to match. Without any everything does.
type anyOf []string

func (a anyOf) has(match func(string) bool) bool { return len(a) == 0 || slices.ContainsFunc(a, match) }

func (a anyOf) is(value string) bool { return a.has(func(want string) bool { return want == value }) }

// listing is how a list is shown, and what of it.
type listing struct {
	filter
	all, quiet, latest, whole bool
	last                      int
	format                    *string
}

// listingFlags are those that ps and pods share, as crictl and Docker write them.
func listingFlags(cmd *cobra.Command, what string) *listing {
	l, f := &listing{}, cmd.Flags()
	f.BoolVarP(&l.quiet, "quiet", "q", false, "print only ids")
	f.BoolVarP(&l.latest, "latest", "l", false, "only the newest, in any state")
	f.IntVarP(&l.last, "last", "n", 0, "only this `many` of the newest, in any state")
	f.BoolVar(&l.whole, "no-trunc", false, "do not shorten ids")
	f.StringArrayVarP(&l.texts, "filter", "f", nil, "only "+what+" that match `KEY=VALUE`; see above")
	f.StringArrayVar((*[]string)(&l.id), "id", nil, "only those whose id begins with this `id`")
	f.StringArrayVar((*[]string)(&l.name), "name", nil, "only those whose name matches this `expression`")
	f.StringArrayVar(&l.labels, "label", nil, "only those with this `label`: NAME or NAME=VALUE")
	f.StringArrayVarP((*[]string)(&l.state), "state", "s", nil, "only those in this `state`")
	f.StringArrayVar((*[]string)(&l.namespace), "namespace", nil, "only those in this Kubernetes `namespace`; that of "+
		"berth run is berth")
	l.format = outputFlag(cmd)
	return l
}

// cut leaves the newest, where only those were asked for. The list is in that order.
func cut[T any](l *listing, list []T) []T {
	most := l.last
	if l.latest {
		most = 1
	}
	if most <= 0 {
		return list
	}
	return list[:min(most, len(list))]
}

// name is an id as the list shows it.
func (l *listing) shown(id string) string {
	if l.whole {
		return id
	}
	return short(id)
}

// read takes up --filter and checks what was said. An empty value says nothing.
func (f *filter) read() error {
	for _, text := range f.texts {
		key, value, ok := strings.Cut(text, "=")
		to := map[string]*anyOf{
			"id": &f.id, "name": &f.name, "status": &f.state, "state": &f.state, "ancestor": &f.image, "image": &f.image,
			"pod": &f.pod, "namespace": &f.namespace, "exited": &f.exited,
		}[key]
		switch {
		case key == "label" && ok:
			f.labels = append(f.labels, value)
		case to == nil || !ok:
			return fail.New(errdefs.ErrInvalidArgument, "--filter %s: there is id=, name=, label=, status=, ancestor=, pod=, "+
				"namespace= and exited=", text)
		default:
			*to = append(*to, value)
		}
	}
	for _, of := range []*anyOf{&f.id, &f.state, &f.image, &f.pod, &f.namespace, &f.name, &f.exited} {
		*of = slices.DeleteFunc(*of, func(value string) bool { return value == "" })
	}
	for _, name := range f.name {
		named, err := regexp.Compile(name)
		if err != nil {
			return fail.New(errdefs.ErrInvalidArgument, "a name: %w", err)
		}
		f.named = append(f.named, named)
	}
	return nil
}

// matches is what containers and pods have alike.
func (f *filter) matches(id, name, namespace, state string, labels map[string]string) bool {
	named := len(f.named) == 0 || slices.ContainsFunc(f.named, func(e *regexp.Regexp) bool { return e.MatchString(name) })
	return named && f.id.has(func(want string) bool { return strings.HasPrefix(id, want) }) && f.namespace.is(namespace) &&
		f.state.has(func(want string) bool { return strings.EqualFold(want, state) }) &&
		!slices.ContainsFunc(f.labels, func(want string) bool {
			key, value, valued := strings.Cut(want, "=")
			got, ok := labels[key]
			return !ok || valued && got != value
		})
}

// container reports whether the list has a container of a pod.
func (f *filter) container(c *runtimeapi.Container, p *runtimeapi.PodSandbox) bool {
	image := f.image.has(func(want string) bool {
		return strings.HasPrefix(strings.TrimPrefix(c.GetImageId(), "sha256:"), want) ||
			isImage(want, c.GetImage().GetUserSpecifiedImage()) || isImage(want, c.GetImage().GetImage())
	})
	pod := f.pod.has(func(want string) bool {
		return strings.HasPrefix(c.GetPodSandboxId(), want) || p.GetMetadata().GetName() == want
	})
	return image && pod && f.matches(c.GetId(), c.GetMetadata().GetName(), p.GetMetadata().GetNamespace(),
		stateText(c.GetState().String()), c.GetLabels())
}

// podMatches reports whether the list has a pod.
func (f *filter) podMatches(p *runtimeapi.PodSandbox) bool {
	m := p.GetMetadata()
	return f.matches(p.GetId(), m.GetName(), m.GetNamespace(), stateText(p.GetState().String()), p.GetLabels())
}

// parseMoment reads a time as people give it to logs: how long ago, a date, or seconds since 1970.
func parseMoment(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	for _, form := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04",
		time.DateOnly} {
		if t, err := time.ParseInLocation(form, text, time.Local); err == nil {
			return t, nil
		}
	}
	if d, err := time.ParseDuration(text + "s"); err == nil {
		return time.Unix(0, 0).Add(d), nil
	}
	return time.Time{}, fail.New(errdefs.ErrInvalidArgument,
		"%q is no time: want how long ago, such as 10m, or a date such as 2026-01-31T12:00:00", text)
}
