package nri

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"berth/internal/listen"
)

// errInUse is returned for a socket at which another process listens.
var errInUse = errors.New("another process listens there")

// maxSocketPath is how long the path of a unix socket may be: the kernel's 108 bytes, less the terminating one.
const maxSocketPath = 107

// socket is the place where plugins connect.
//
// The listener is at a private path beside the public one, and place links the listening socket to the public path,
// which fails where something is: the socket of another runtime is not taken away.
type socket struct {
	path    string      // where plugins look for it
	private string      // where the listener is until place
	placed  listen.Name // of our socket at path, from place on
}

// newSocket names the socket of an instance. No other instance has its root, so none uses its private path.
func newSocket(path, instance string) *socket {
	return &socket{path: path, private: path + "." + instance}
}

// prepare makes sure that place can be expected to work. It returns an error that wraps errInUse where the path is
// taken.
func (s *socket) prepare() error {
	if n := len(s.private); n > maxSocketPath {
		return fmt.Errorf("%s is %d bytes long with the name of this daemon, and the kernel allows a socket %d",
			s.private, n, maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return err
	}
	if _, err := s.stale(s.path); err != nil {
		return err
	}
	if _, err := s.stale(s.private); err != nil { // what a killed daemon left is stale
		return err
	}
	_ = os.Remove(s.private)
	l, err := net.Listen("unix", s.private)
	if err != nil {
		return err
	}
	return l.Close()
}

// stale reports whether path is a socket at which no process listens. No error and false is a path where nothing is.
func (s *socket) stale(path string) (bool, error) {
	use, err := listen.UseOf(path)
	switch {
	case err != nil:
		return false, fmt.Errorf("see whether a process listens at %s: %w", path, err)
	case use == listen.Other:
		return false, fmt.Errorf("%s is not a socket, or a link to one that has gone: remove it, or set nri.socket to "+
			"another path", path)
	case use == listen.Served, use == listen.Deaf:
		return false, inUse(path)
	}
	return use == listen.Stale, nil
}

func inUse(path string) error { return fmt.Errorf("%s: %w", path, errInUse) }

// placeTries is how often place looks again when the path changes under it.
const placeTries = 3

// place gives the listening socket its public path. It replaces a stale socket and nothing else.
func (s *socket) place() (err error) {
	defer os.Remove(s.private) // the listener needs no name
	if err := os.Chmod(s.private, 0o600); err != nil {
		return err
	}
	for range placeTries {
		if err = os.Link(s.private, s.path); err == nil {
			s.placed, err = listen.NameOf(s.path)
			return err
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := s.removeStale(); err != nil {
			return err
		}
	}
	return err
}

// removeStale makes room for the socket. Between a look at the path and its removal another process may put its own
// socket there, so the stale one is moved aside and looked at again before it is removed.
func (s *socket) removeStale() error {
	if stale, err := s.stale(s.path); err != nil || !stale {
		return err
	}
	aside := s.private + ".old"
	if err := os.Rename(s.path, aside); err != nil {
		return err
	}
	if _, err := s.stale(aside); err != nil {
		return errors.Join(inUse(s.path), os.Link(aside, s.path), os.Remove(aside))
	}
	return os.Remove(aside)
}
