// Package identity keeps, in a small plain file beside each pod's record, what has to be known of a pod whose record
// cannot be read: its name, so that it is not made twice, and the image layers beneath its containers, so that they are
// not swept away under them.
//
// The format never changes, so that every release reads the file of every other:
//
//	berth-pod-identity
//	namespace=<value>
//	name=<value>
//	uid=<value>
//	attempt=<number>
//	handler=<value>
//	created=<time>
//	layer=<id>
//
// Values are percent-encoded, the time is one of RFC 3339 in UTC, lines end with a newline, layers are appended as
// containers come, and lines of other names are passed over.
package identity

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/internal/limit"
)

const head = "berth-pod-identity"

// Identity is what a file says of a pod.
type Identity struct {
	Namespace, Name, UID string
	Attempt              uint32
	Handler              string // the runtime handler that was asked for
	Layers               []string
	// Created is the record's CreatedAt; zero where an earlier release wrote the file.
	Created time.Time
}

// File is the file of one pod. Its methods may be called concurrently.
type File struct {
	path string

	mu   sync.Mutex // guards kept and writes to the file
	kept map[string]struct{}
}

// Of returns the file at path, which need not be there yet.
func Of(path string) *File { return &File{path: path} }

// Create writes the file anew. It does not wait for the disk: what the file is about does not outlive a boot.
func (f *File) Create(i Identity) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.create(i)
}

func (f *File) create(i Identity) error {
	text := fmt.Appendf(nil, "%s\nnamespace=%s\nname=%s\nuid=%s\nattempt=%d\nhandler=%s\ncreated=%s\n", head,
		url.QueryEscape(i.Namespace), url.QueryEscape(i.Name), url.QueryEscape(i.UID), i.Attempt, url.QueryEscape(i.Handler),
		url.QueryEscape(i.Created.UTC().Format(time.RFC3339Nano)))
	for _, l := range i.Layers {
		text = appendLayer(text, l)
	}
	next := f.path + ".next" // a reader finds the whole file or none
	err := os.WriteFile(next, text, 0o600)
	if err == nil {
		err = os.Rename(next, f.path)
	}
	if err != nil {
		_ = os.Remove(next)
		return fmt.Errorf("write the pod's identity: %w", err)
	}
	f.keep(i.Layers)
	return nil
}

// Keep adds the layers that the file does not have yet, in one write. A file that is not there, as of a pod of a
// release that wrote none, or that is damaged, is made anew of what is known.
func (f *File) Keep(known func() Identity, layers []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kept == nil {
		if was, err := Read(f.path); err == nil {
			f.keep(was.Layers)
		} else if err := f.create(known()); err != nil {
			return err
		}
	}
	var text []byte
	for _, l := range layers {
		if _, ok := f.kept[l]; !ok {
			text = appendLayer(text, l)
		}
	}
	if len(text) == 0 {
		return nil
	}
	if err := appendTo(f.path, text); err != nil {
		f.kept = nil // what is in the file is not known any more
		return fmt.Errorf("add layers to the pod's identity: %w", err)
	}
	f.keep(layers)
	return nil
}

// keep notes what is in the file.
func (f *File) keep(layers []string) {
	if f.kept == nil {
		f.kept = map[string]struct{}{}
	}
	for _, l := range layers {
		f.kept[l] = struct{}{}
	}
}

func appendLayer(text []byte, id string) []byte {
	return append(append(append(text, "layer="...), url.QueryEscape(id)...), '\n')
}

// appendTo appends text to a file, in place of a last line that an earlier write did not finish.
func appendTo(path string, text []byte) error {
	was, err := readFile(path)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if whole := bytes.LastIndexByte(was, '\n') + 1; whole < len(was) {
		if err := file.Truncate(int64(whole)); err != nil {
			return err
		}
	}
	_, err = file.Write(text)
	return err
}

// readFile reads a regular file, of any size: it has a line for each layer.
func readFile(path string) ([]byte, error) {
	f, err := limit.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// Read reads the file at path. An error says that the pod's name, or a layer, cannot be known from it. A last line
// without an end is passed over: what it would keep is not used before the line is written.
func Read(path string) (Identity, error) {
	var i Identity
	text, err := readFile(path)
	if err != nil {
		return i, fmt.Errorf("read a pod's identity: %w", err)
	}
	bad := func(why string) (Identity, error) {
		return i, fmt.Errorf("the identity of a pod in %s is damaged: %s", path, why)
	}
	if !bytes.HasPrefix(text, []byte(head+"\n")) {
		return bad("it does not begin as one")
	}
	had := map[string]bool{}
	lines := strings.Split(string(text[len(head)+1:]), "\n")
	for _, line := range lines[:len(lines)-1] {
		key, value, _ := strings.Cut(line, "=")
		v, err := url.QueryUnescape(value)
		if err != nil {
			return bad(fmt.Sprintf("a line is %q", line))
		}
		had[key] = true
		switch key {
		case "namespace":
			i.Namespace = v
		case "name":
			i.Name = v
		case "uid":
			i.UID = v
		case "handler":
			i.Handler = v
		case "created":
			i.Created, _ = time.Parse(time.RFC3339Nano, v)
		case "layer":
			i.Layers = append(i.Layers, v)
		case "attempt":
			n, err := strconv.ParseUint(v, 10, 32)
			if err != nil {
				return bad("its attempt is " + strconv.Quote(v))
			}
			i.Attempt = uint32(n)
		}
	}
	for _, key := range []string{"namespace", "name", "uid", "attempt"} {
		if !had[key] {
			return bad("it has no " + key)
		}
	}
	return i, nil
}
