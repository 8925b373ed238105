package pod

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"berth/internal/op"
	"berth/internal/sandbox"
)

// Situation is what a pod, or a container of one, does at the moment and what it waits for. It holds nothing that may
// be a secret of the pod: see hide.
type Situation struct {
	Pod, Container string // ids; no container in what tells of the pod itself
	Name           string // namespace/pod, or namespace/pod/container
	State          string
	Created        time.Time
	Handler        string
	Image          string // the image's id

	// Operation is what holds the lane, since Since. Callers wait for its end, Queued for the lane, by the kind of
	// operation.
	Operation string
	Since     time.Time
	Ended     bool // it was told to end
	Callers   int
	Queued    map[string]int
	// Step is the oldest step of its plan that runs, since StepSince, Beside those that run beside it.
	Step      string
	StepSince time.Time
	Beside    []string

	// Failed is the undo that did not succeed and is tried again.
	Failed      string
	FailedSince time.Time
	Tries       int

	Recovering bool      // the daemon does not know yet what of it runs
	Writing    time.Time // its record has been being written since
}

// Idle says that it waits for nothing.
func (s *Situation) Idle() bool {
	return s.Operation == "" && s.Failed == "" && !s.Recovering && s.Writing.IsZero()
}

// Situations tells of every pod and container, those that wait first. It takes no lock of theirs, so it answers
// whatever they wait for, a disk that hangs too.
func Situations(s *Pods) []Situation {
	busy := map[op.Owner]op.Activity{}
	for _, a := range s.board.Activities() {
		busy[a.Of] = a
	}
	x := s.Catalog.index.Load()
	var all []Situation
	for _, p := range x.pods {
		all = append(all, situationsOf(p, busy)...)
	}
	for id, d := range x.damaged {
		all = append(all, Situation{Pod: string(id), State: "its record cannot be read", Failed: d.what()})
	}
	slices.SortFunc(all, compareSituations)
	return all
}

func compareSituations(a, b Situation) int {
	if a.Idle() != b.Idle() {
		if a.Idle() {
			return 1
		}
		return -1
	}
	if c := strings.Compare(a.Pod, b.Pod); c != 0 {
		return c
	}
	return strings.Compare(a.Container, b.Container)
}

// situationsOf tells of p and of its containers.
func situationsOf(p *pod, busy map[op.Owner]op.Activity) []Situation {
	id := string(p.id)
	r := p.rec.Load()
	m := r.Config.Get().GetMetadata()
	name := m.GetNamespace() + "/" + m.GetName()
	of := Situation{
		Pod: id, Name: name, State: string(r.State), Created: r.CreatedAt, Handler: r.Runtime,
	}
	select {
	case <-p.adopted:
	default:
		of.Recovering = true
	}
	if began := p.writing.Load(); began != nil {
		of.Writing = *began
	}
	of.busy(busy[op.Owner{Pod: id}])
	of.failed(r, r.Stuck)
	all := []Situation{of}
	for _, c := range r.Containers {
		of := Situation{
			Pod: id, Container: string(c.ID), Name: name + "/" + c.Config.Get().GetMetadata().GetName(), State: string(c.State),
			Created: c.CreatedAt, Image: c.Image,
		}
		of.busy(busy[op.Owner{Pod: id, Container: string(c.ID)}])
		of.failed(r, c.Stuck)
		all = append(all, of)
	}
	return all
}

func (s *Situation) busy(a op.Activity) {
	s.Operation, s.Since, s.Ended, s.Callers, s.Queued = a.Kind, a.Since, a.Ended, a.Callers, a.Queued
	for i, step := range a.Steps {
		text := step.Plan + ": "
		if step.Undo {
			text += "undo "
		}
		if text += step.Step; i == 0 {
			s.Step, s.StepSince = text, step.Since
		} else {
			s.Beside = append(s.Beside, text)
		}
	}
}

func (s *Situation) failed(r *sandbox.Record, f *sandbox.Failure) {
	if f != nil {
		s.Failed, s.FailedSince, s.Tries = hide(f.Error, r), f.Since, f.Tries
	}
}

// shownFields are the strings of a pod's and a container's configuration that may stand in an error that leaves the
// node. All others, known today or added to CRI one day, are taken for secrets: values of variables, labels and
// annotations, commands and their arguments.
var shownFields = map[protoreflect.Name]bool{
	"key": true, "container_path": true, "host_path": true, "path": true, "image": true, "user_specified_image": true,
	"image_ref": true, "image_sub_path": true, "log_path": true, "log_directory": true,
	"hostname": true, "working_dir": true,
	"cgroup_parent": true, "runtime_handler": true, "servers": true, "searches": true, "options": true,
}

// shownMessages are those of which all may be told.
var shownMessages = map[protoreflect.Name]bool{"PodSandboxMetadata": true, "ContainerMetadata": true}

// shortestSecret is the length from which a value is looked for in texts: a shorter one stands in many by chance.
const shortestSecret = 4

// hidden stands for what was hidden.
const hidden = "[hidden]"

// hide takes out of text what the configuration of a pod and its containers holds and what may be a secret. A text of a
// runtime or plugin may quote any of it, also as a quoted string, by lines, and by the value of an option.
func hide(text string, r *sandbox.Record) string {
	var found []string
	note := func(value string) {
		_, option, _ := strings.Cut(value, "=")
		for _, v := range append(strings.Split(value, "\n"), value, option) {
			if v = strings.TrimSpace(v); len(v) >= shortestSecret {
				found = append(found, v, quoted(v))
			}
		}
	}
	eachSecret(r.Config.Get().ProtoReflect(), note)
	for _, c := range r.Containers {
		eachSecret(c.Config.Get().ProtoReflect(), note)
	}
	slices.SortFunc(found, func(a, b string) int { return len(b) - len(a) }) // one may be a part of another
	for _, v := range slices.Compact(found) {
		text = strings.ReplaceAll(text, v, hidden)
	}
	return text
}

// eachSecret calls note with every string of m, and of what it holds, that shownFields does not name.
func eachSecret(m protoreflect.Message, note func(string)) {
	if !m.IsValid() || shownMessages[m.Descriptor().Name()] {
		return
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		of := f
		if f.IsMap() {
			of = f.MapValue()
		}
		one := func(v protoreflect.Value) {
			switch of.Kind() {
			case protoreflect.MessageKind, protoreflect.GroupKind:
				eachSecret(v.Message(), note)
			case protoreflect.StringKind:
				if !shownFields[f.Name()] {
					note(v.String())
				}
			case protoreflect.BytesKind:
				note(string(v.Bytes()))
			}
		}
		switch {
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				one(v)
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				one(v.List().Get(i))
			}
		default:
			one(v)
		}
		return true
	})
}

// quoted is v as it stands between the quotes of a Go or JSON string.
func quoted(v string) string { return strings.Trim(strconv.Quote(v), `"`) }
