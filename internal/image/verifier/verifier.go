// Package verifier asks the programs of a directory whether an image may be pulled. A program gets the image's name and
// digest as arguments and its descriptor on standard input; it exits with 0 to accept, with anything else to refuse,
// and says why on standard output. So programs written for containerd's image-verifier directory work here unchanged.
//
// When in doubt it refuses: a program that cannot be run, crashes or takes too long is one that did not accept.
//
// Verify asks each time, Confirm only where the same programs have not accepted the same image before.
package verifier

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"berth/internal/limit"
)

// Dir is a directory of programs. Its fields are set before the first call of Verify, which may be called concurrently.
type Dir struct {
	Path    string
	Max     int           // programs that may be in it; with more every image is refused
	Timeout time.Duration // of one program
	// Run runs a program for an operation of the given name, and returns when it has ended, or ctx has, and nothing of it
	// is left.
	Run func(ctx context.Context, name string, cmd *exec.Cmd) error
	Log *slog.Logger // gets what programs write to standard error; required

	accepted answers
	asking   singleflight.Group // of Confirm
	turns    turns
}

// Refusal says which program does not accept an image, and its reason.
type Refusal struct {
	Verifier string // the program's file name
	Reason   string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("verifier %q refuses it: %s", r.Verifier, r.Reason)
}

// Question is what programs are asked about.
type Question struct {
	Name       string             // a whole reference
	Descriptor ocispec.Descriptor // what the name was resolved to
	Namespace  string             // of the pod that needs the image; empty where it is not known
}

// Verify asks all programs at once. It returns nil when all of them accept, and the first refusal otherwise; the others
// are then ended. The directory is read at each call. An empty one accepts; one that cannot be read does not. When ctx
// ends, so do the programs, and the error is its cause.
func (d *Dir) Verify(ctx context.Context, q Question) error {
	programs, err := d.Programs()
	if err != nil {
		return err
	}
	who := identities(programs) // before they are asked: what takes the place of one meanwhile has not answered
	if err := d.askAll(ctx, programs, q); err != nil {
		return err
	}
	d.accepted.add(q.key(who))
	return nil
}

func (d *Dir) askAll(ctx context.Context, programs []string, q Question) error {
	input, err := json.Marshal(q.Descriptor)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, program := range programs {
		g.Go(func() error { return d.ask(gctx, program, q, input) })
	}
	err = g.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Programs are the paths of the programs, in the order of their names. Names that begin with a dot are none. Anything
// else that cannot be run, and more programs than Max, is an error.
func (d *Dir) Programs() ([]string, error) {
	entries, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the directory of verifiers %s is not there: make it, or clear image_verifier.dir", d.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the directory of verifiers: %w", err)
	}
	var programs []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(d.Path, e.Name())
		if err := runnable(path); err != nil {
			return nil, err
		}
		programs = append(programs, path)
	}
	if err := limit.Verifiers.At(int64(d.Max)).Check(int64(len(programs))); err != nil {
		return nil, fmt.Errorf("none in %s was asked: %w", d.Path, err)
	}
	return programs, nil
}

func runnable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("verifier: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("verifier %s is no file: every name in the directory must be that of a program", path)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("verifier %s is not executable: make it so, or take it away", path)
	}
	return nil
}

// MediaType is that of what a program reads from its standard input.
const MediaType = ocispec.MediaTypeDescriptor

func (d *Dir) ask(ctx context.Context, program string, q Question, input []byte) error {
	timed, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	var said, complained head
	cmd := exec.Command(program, "-name", q.Name, "-digest", q.Descriptor.Digest.String(), "-stdin-media-type", MediaType)
	cmd.Dir, cmd.Env = "/", environment(q.Namespace)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &said, &complained
	err := d.Run(timed, operation(program), cmd)
	log := d.Log.With("verifier", filepath.Base(program),
		"image", q.Name, "digest", q.Descriptor.Digest, "namespace", q.Namespace)
	if err == nil {
		log.Debug("a verifier accepts an image", "reason", said.text(), "stderr", complained.text())
		return nil
	}
	if ctx.Err() != nil { // the caller gave up, or another refused
		return context.Cause(ctx)
	}
	if text := complained.text(); text != "" {
		log.Warn("a verifier that refuses an image wrote to its standard error", "stderr", text)
	}
	return &Refusal{filepath.Base(program), d.reason(timed, err, &said)}
}

// reason is what the program said, or else what became of it.
func (d *Dir) reason(ctx context.Context, err error, said *head) string {
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		return cmp.Or(said.text(), printable(err.Error()))
	case ctx.Err() != nil:
		return fmt.Sprintf("it did not answer within %v (image_verifier.timeout)", d.Timeout)
	}
	return printable(err.Error())
}

// operation names a program's runs, so that one which cannot be killed is not started again and again.
func operation(program string) string {
	sum := sha256.Sum256([]byte(program))
	return "verify-" + hex.EncodeToString(sum[:6])
}

// passed are the daemon's variables that a program gets: what reaches registries is theirs to know.
var passed = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE",
	"SSL_CERT_DIR"}

// NamespaceVariable has the namespace of the pod that needs the image, where it is known.
const NamespaceVariable = "BERTH_POD_NAMESPACE"

func environment(namespace string) []string {
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
	if namespace != "" {
		env = append(env, NamespaceVariable+"="+namespace)
	}
	for _, name := range passed {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// headBytes is what is kept of what a program writes.
const headBytes = 1 << 10

// head keeps the beginning of what is written to it, and takes the rest as well.
type head struct {
	kept []byte
	more bool
}

func (h *head) Write(p []byte) (int, error) {
	n := min(len(p), headBytes-len(h.kept))
	h.kept = append(h.kept, p[:n]...)
	h.more = h.more || n < len(p)
	return len(p), nil
}

// text is what was kept, on one line and fit for an error. It is for when the program has ended.
func (h *head) text() string {
	text := printable(string(h.kept))
	if h.more {
		text += " …"
	}
	return text
}

func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return strings.Join(strings.Fields(s), " ")
}
