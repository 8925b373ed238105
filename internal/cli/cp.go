package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"berth/internal/admin"
	"berth/internal/fail"
)

func cpCommand(a *app) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "cp [flags] CONTAINER:PATH FILE|- or FILE|- CONTAINER:PATH", Short: "Copy files to and from a container",
		Args: exactly(2), DisableFlagsInUseLine: true,
		Long: "Copy a file, or a directory with everything below it, from a running container or into it. As with " +
			"cp, a destination that is an existing directory gets the copy inside it, and DIRECTORY/. stands " +
			"for the content of the directory. - is a tar archive on standard input or output.\n" +
			"\n" +
			"The container's own tar does the work, so this works with user namespaces and sandboxes, but needs " +
			"an image with tar. Whatever names and links a container sends, nothing is written outside FILE; " +
			"owners, set-user-id bits and device nodes are left out.",
		Example: examples("berth cp web:/etc/nginx/nginx.conf .", "berth cp site/. web:/srv",
			"berth cp web:/var/log - >logs.tar"),
	}
	cmd.Flags().BoolVarP(&follow, "follow-link", "L", false, "copy what links lead to, and not the links")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		from, inside, isFrom := place(args[0])
		to, target, isTo := place(args[1])
		if isFrom == isTo {
			return wrongUse(cmd, errors.New("one of both is CONTAINER:PATH, the other a file of this machine or -"))
		}
		return a.with(func(c *client) error {
			if isTo {
				return copyInto(cmd, c, args[0], copied{container: to, path: target, follow: follow})
			}
			return copyOut(cmd, c, copied{container: from, path: inside, follow: follow}, args[1])
		})
	}
	return cmd
}

// place takes CONTAINER:PATH apart. What begins like a path is one of this machine.
func place(text string) (container, inside string, is bool) {
	container, inside, is = strings.Cut(text, ":")
	if !is || container == "" || strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") {
		return "", "", false
	}
	return container, inside, true
}

// copied is what is to be copied out of a container, or where to in one.
type copied struct {
	container, path string
	follow          bool
}

// split is the directory and what of it is copied; "." is all that is in it.
func (s copied) split() (dir, base string) {
	p := path.Join("/", s.path)
	if p == "/" || strings.HasSuffix(s.path, "/.") {
		return p, "."
	}
	return path.Split(p)
}

// missing says in plain words that what tar could not find is what was to be copied; what went away below it meanwhile
// is told as tar tells it.
func (s copied) missing(err error) error {
	dir, base := s.split()
	text := err.Error()
	if strings.Contains(text, "No such file or directory") && (strings.Contains(text, " "+base+": ") ||
		strings.Contains(text, " "+dir+": ") || strings.Contains(text, "change directory")) {
		return fail.New(errdefs.ErrNotFound, "there is no such file in the container")
	}
	return err
}

// copyOut has the container pack what is copied, and unpacks it here.
func copyOut(cmd *cobra.Command, c *client, s copied, to string) error {
	dir, base := s.split()
	argv := []string{"tar", "-c", "-f", "-", "-C", dir, "--", base}
	if s.follow {
		argv = append([]string{"tar", "-h"}, argv[1:]...)
	}
	if to == "-" {
		if terminalOf(stdout(cmd)) != nil {
			return errors.New("an archive is nothing for a terminal: name a file, or pipe it somewhere")
		}
		return runInside(cmd.Context(), c, s.container, argv, nil, stdout(cmd))
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := runInside(ctx, c, s.container, argv, nil, w)
		_ = w.CloseWithError(err) // nil is the end of the archive
		done <- err
	}()
	err := unpackBelow(r, base, to)
	if err == nil {
		_, _ = io.CopyN(io.Discard, r, mostPadding)
	} else {
		cancel()
	}
	_ = r.CloseWithError(errEnough)
	if tarErr := <-done; tarErr != nil && !errors.Is(tarErr, errEnough) && (err == nil || errors.Is(err, tarErr)) {
		return fmt.Errorf("copy %s:%s: %w", s.container, s.path, s.missing(tarErr))
	}
	if err != nil {
		return fmt.Errorf("copy %s:%s: %w", s.container, s.path, err)
	}
	return nil
}

// mostPadding is how much is read behind the end of an archive, which tar fills up to a whole record.
const mostPadding = 1 << 20

// errEnough ends an archive that has no reader any more.
var errEnough = errors.New("nobody reads any more")

// runInside runs a command of a container's image in it: tar, and test.
func runInside(
	ctx context.Context, c *client, word string, argv []string, in io.Reader, out io.Writer,
) error {
	id, err := c.container(ctx, word)
	if err != nil {
		return err
	}
	said := &bytes.Buffer{}
	req := &admin.ExecRequest{Container: id, Command: argv, Stdin: in != nil}
	code, err := c.node.Exec(ctx, req, admin.Streams{In: in, Out: out, Err: said})
	var not *exitError
	switch {
	case errors.As(cannotInvoke(err), &not):
		return fail.New(errdefs.ErrFailedPrecondition, "the container has no %s, which does the work there", argv[0])
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("%s in the container ended with code %d: %s", argv[0], code, oneLine(said.String()))
	}
	return nil
}

// unpackBelow writes what an archive has to a file or directory. Its first entry is called base; that and no more of
// this machine is written, whatever else the archive says: a container made it.
func unpackBelow(r io.Reader, base, to string) error {
	info, err := os.Stat(to)
	fresh := absent(err)
	if err == nil && info.Mode().IsRegular() { // a link stays, and what it leads to is written
		if to, err = filepath.EvalSymlinks(to); err != nil {
			return err
		}
	}
	place, name := filepath.Dir(filepath.Clean(to)), filepath.Base(filepath.Clean(to))
	switch {
	case err == nil && !info.IsDir() && !info.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file; berth exec CONTAINER cat PATH prints what is in one", to)
	case err == nil && info.IsDir() || strings.HasSuffix(to, "/") || base == ".":
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		place, name = to, base
	case err != nil && !absent(err):
		return err
	}
	root, err := os.OpenRoot(place)
	if err != nil {
		return err
	}
	u := &unpacker{root: root, base: base, name: name, made: map[string]uint64{}}
	defer u.close()
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		into, at, err := u.place(h.Name)
		if err != nil {
			return err
		}
		if err := u.entry(into, at, h, archive); err != nil {
			return err
		}
		if at == "." && fresh && h.Typeflag == tar.TypeDir { // the directory made above for the content
			if err := root.Chmod(at, dirMode(h)); err != nil {
				return err
			}
		}
	}
}

// unpacker writes what a container sends below one file or directory.
type unpacker struct {
	root       *os.Root
	tree       *os.Root // the directory that is copied, once there is something below it
	base, name string   // of the first entry, in the archive and here
	// made has the inodes of files and links that were made, by their paths below their root: nothing else gets another
	// name by a hard link.
	made map[string]uint64
}

func (u *unpacker) close() {
	if u.tree != nil {
		_ = u.tree.Close()
	}
	_ = u.root.Close()
}

// place is where the entry of a name goes: a root, and a path below it.
func (u *unpacker) place(member string) (into *os.Root, at string, err error) {
	rest, ok := strings.CutPrefix(path.Clean(member), u.base)
	if u.base == "." {
		rest, ok = path.Clean(member), true
	}
	at = path.Join(u.name, rest)
	if !ok || rest != "" && rest[0] != '/' && u.base != "." || !filepath.IsLocal(at) {
		return nil, "", fmt.Errorf("the container sent %q, which was not asked for", member)
	}
	if u.base == "." || rest == "" {
		return u.root, at, nil
	}
	if u.tree == nil {
		if u.tree, err = openTree(u.root, u.name); err != nil {
			return nil, "", err
		}
	}
	return u.tree, rest[1:], nil
}

// openTree opens a directory below root. It follows no link: the container may have sent one, to what lies beside it.
func openTree(root *os.Root, name string) (*os.Root, error) {
	info, err := root.Lstat(name)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory, and the container sent files in it", name)
	}
	if err != nil {
		return nil, err
	}
	return root.OpenRoot(name)
}

// entry writes one entry. Links are made as they are; a root follows none that leads out.
func (u *unpacker) entry(into *os.Root, at string, h *tar.Header, data io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return makeDir(into, at, dirMode(h))
	case tar.TypeReg:
		if err := makeWay(into, at); err != nil {
			return err
		}
		f, err := into.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, h.FileInfo().Mode().Perm())
		if err != nil {
			return err
		}
		_, err = io.Copy(f, data)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err := makeWay(into, at); err != nil {
			return err
		}
		if err := into.Symlink(h.Linkname, at); err != nil {
			return err
		}
	case tar.TypeLink:
		from, target, err := u.place(h.Linkname)
		if err != nil || from != into || !u.isMade(from, target) || target == at {
			return nil // it is a link to what was left out, or not copied
		}
		if err := makeWay(into, at); err != nil {
			return err
		}
		if err := into.Link(target, at); err != nil {
			return err
		}
	default:
		return nil // a device or a FIFO is nothing to copy
	}
	u.made[at] = inode(into, at)
	return nil
}

// isMade says that a file is one that was made here.
func (u *unpacker) isMade(root *os.Root, at string) bool {
	n, known := u.made[at]
	return known && n != 0 && n == inode(root, at)
}

// inode is the number of a file or link, 0 where there is none.
func inode(root *os.Root, at string) uint64 {
	info, err := root.Lstat(at)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// makeWay removes the file or link that is to be replaced. What else there may be, such as a device, stays: nothing
// that is copied can do its work.
func makeWay(root *os.Root, at string) error {
	info, err := root.Lstat(at)
	switch {
	case absent(err):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0:
		return fmt.Errorf("%s is there already, and neither a file nor a link", at)
	}
	return root.Remove(at)
}

// dirMode is the mode of a directory of an archive, in which its owner here can always write what follows.
func dirMode(h *tar.Header) fs.FileMode { return h.FileInfo().Mode().Perm() | 0o700 }

// makeDir makes a directory of a mode. A directory that is there already keeps its own mode, because it is this
// machine's and the container must not open it to everybody.
func makeDir(root *os.Root, at string, mode fs.FileMode) error {
	if err := root.MkdirAll(path.Dir(at), 0o700); err != nil {
		return err
	}
	err := root.Mkdir(at, 0o700)
	if errors.Is(err, fs.ErrExist) {
		if info, statErr := root.Stat(at); statErr == nil && info.IsDir() {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return root.Chmod(at, mode)
}

// copyInto packs files of this machine, and has the container unpack them.
func copyInto(cmd *cobra.Command, c *client, from string, s copied) error {
	ctx, word, to := cmd.Context(), s.container, s.path
	target := path.Join("/", to)
	if from == "-" {
		return runInside(ctx, c, word, []string{"tar", "-x", "-f", "-", "-C", target}, cmd.InOrStdin(), io.Discard)
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	content := strings.HasSuffix(from, "/.") || filepath.Clean(from) == "."
	isDir := runInside(ctx, c, word, []string{"test", "-d", target}, nil, io.Discard) == nil
	dir, name := path.Split(target)
	switch {
	case content && info.IsDir():
		dir, name = target, "."
	case isDir || strings.HasSuffix(to, "/"):
		abs, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		dir, name = target, filepath.Base(abs)
	}
	there := name == "." || info.IsDir() &&
		runInside(ctx, c, word, []string{"test", "-d", path.Join(dir, name)}, nil, io.Discard) == nil
	r, w := io.Pipe()
	p := &packer{archive: tar.NewWriter(w), from: from, name: name, there: there, follow: s.follow}
	packed := make(chan error, 1)
	go func() {
		err := p.pack()
		_ = w.CloseWithError(err)
		packed <- err
	}()
	err = runInside(ctx, c, word, []string{"tar", "-x", "-f", "-", "-C", dir}, r, io.Discard)
	_ = r.CloseWithError(errEnough)
	if packErr := <-packed; err == nil {
		err = packErr
	}
	if err = errors.Join(p.leftOut(), err); err != nil {
		return fmt.Errorf("copy to %s:%s: %w", word, to, err)
	}
	return nil
}
