// Package listen has what each server of a unix socket needs beside package net: who has a path already, a socket that
// its process knows again, and a listener that outlives a lack of descriptors.
package listen

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Use is what a path is used for.
type Use int

// The uses of a path.
const (
	Free   Use = iota // nothing is there
	Other             // something that is no socket, or a link to nowhere
	Stale             // a socket at which no process listens
	Served            // a socket at which one listens; also where that is stopped, since the kernel connects
	Deaf              // one at which a process listens that accepts nobody, or only another kind of connection
)

// UseOf looks at a path, and connects to what is there. An error says that it cannot be told.
func UseOf(path string) (Use, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Free, nil
	case err != nil:
		return Other, err
	}
	kind := info.Mode().Type()
	if kind != fs.ModeSocket && kind != fs.ModeSymlink {
		return Other, nil
	}
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		return Served, conn.Close()
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE): // a full backlog; a socket of another type
		return Deaf, nil
	case kind == fs.ModeSymlink:
		return Other, nil
	case errors.Is(err, unix.ECONNREFUSED):
		return Stale, nil
	case errors.Is(err, fs.ErrNotExist): // it went meanwhile
		return Free, nil
	}
	return Other, err
}

// Name is the path of a socket that this process has made. The zero Name is of none.
type Name struct {
	path string
	made fs.FileInfo
}

// NameOf remembers which socket is at a path now.
func NameOf(path string) (Name, error) {
	info, err := os.Lstat(path)
	return Name{path, info}, err
}

// Ours reports whether the path still leads to that socket: a runtime that starts may remove what is there and put its
// own socket in its place.
func (n Name) Ours() bool {
	if n.made == nil {
		return false
	}
	info, err := os.Lstat(n.path)
	return err == nil && os.SameFile(info, n.made)
}

// Remove takes the path away, unless it is another's by now.
func (n Name) Remove() {
	if n.Ours() {
		_ = os.Remove(n.path)
	}
}

// noRoom is the pause where the kernel has no room for another connection.
const noRoom = 100 * time.Millisecond

// Lasting is a listener that goes on accepting where the kernel has no room for a connection for a while, and after a
// client has gone before it was accepted.
type Lasting struct {
	net.Listener
	Waits func(error) // hears, once for each connection that has to wait, why; may be nil
}

// Accept implements net.Listener.
func (l Lasting) Accept() (net.Conn, error) {
	for told := false; ; told = true {
		c, err := l.Listener.Accept()
		if !passing(err) {
			return c, err
		}
		if !told && l.Waits != nil {
			l.Waits(err)
		}
		time.Sleep(noRoom)
	}
}

func passing(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) ||
		errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ECONNABORTED)
}
