package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"berth/internal/admin"
)

// printer is a terminal on which a command prints what it was told: by images, registries, pods, and those who made
// them. None of it moves the cursor, changes colours or titles, answers to the shell, or runs backwards: it is shown
// escaped.
type printer struct{ terminal *os.File }

// Write prints text. Line breaks and tabs stay.
func (p *printer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.terminal, visible(string(text), "\n\t")); err != nil {
		return 0, err
	}
	return len(text), nil
}

// stdout is where a command prints its result. What is no terminal gets every byte as it is.
func stdout(cmd *cobra.Command) io.Writer {
	w := printerOn(cmd.OutOrStdout())
	if ctx := cmd.Context(); ctx != nil {
		if lost, ok := ctx.Value(lostKey{}).(*lostResult); ok {
			return &resultWriter{w, lost}
		}
	}
	return w
}

// resultWriter keeps the first error of a command's writes to standard output.
type resultWriter struct {
	io.Writer
	lost *lostResult
}

// Write prints text.
func (w *resultWriter) Write(text []byte) (int, error) {
	n, err := w.Writer.Write(text)
	if err != nil {
		w.lost.err.CompareAndSwap(nil, &err)
	}
	return n, err
}

// lostResult is why a part of a command's result could not be printed.
type lostResult struct{ err atomic.Pointer[error] }

// lostKey is that of a lostResult in a command's context.
type lostKey struct{}

// tellsOfLoss has a command fail whose result could not be printed, whether or not it looks at each write itself.
func tellsOfLoss(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		lost := &lostResult{}
		cmd.SetContext(context.WithValue(cmd.Context(), lostKey{}, lost))
		if err := run(cmd, args); err != nil {
			return err
		}
		if err := lost.err.Load(); err != nil {
			return *err
		}
		return nil
	}
}

// plainWriter is the writer below a resultWriter.
func plainWriter(w any) any {
	if r, ok := w.(*resultWriter); ok {
		return r.Writer
	}
	return w
}

// stderr is where a command says how it goes on, and what went wrong.
func stderr(cmd *cobra.Command) io.Writer { return printerOn(cmd.ErrOrStderr()) }

func printerOn(w io.Writer) io.Writer {
	if terminal := terminalOf(w); terminal != nil {
		return &printer{terminal}
	}
	return w
}

// programStreams are for the output of a container's program alone, which may do with the terminal what it likes: that
// is what its user asked for.
func programStreams(cmd *cobra.Command) admin.Streams {
	return admin.Streams{Out: cmd.OutOrStdout(), Err: cmd.ErrOrStderr()}
}

// drawOn writes what moves the cursor on purpose. What others said has to be visible in it already.
func drawOn(w io.Writer, text string) error {
	if p, ok := plainWriter(w).(*printer); ok {
		w = p.terminal
	}
	_, err := io.WriteString(w, text)
	return err
}

// visibleLine escapes what a terminal would do something with, line breaks and tabs among it.
func visibleLine(text string) string { return visible(text, "") }

// visible escapes what a terminal would do something with, other than the runes of keep. JSON stays what it is: in its
// strings the escapes of runes mean the same rune.
func visible(text, keep string) string {
	plain := func(r rune, size int) bool {
		return strings.ContainsRune(keep, r) || !acts(r) && (r != utf8.RuneError || size > 1)
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case plain(r, size):
			b.WriteString(text[i : i+size])
		case r == utf8.RuneError:
			fmt.Fprintf(&b, `\x%02x`, text[i]) // a C1 code to a terminal that does not speak UTF-8
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += size
	}
	return b.String()
}

// acts reports whether a terminal does something else with a rune than to show it: C0 and C1 codes, what changes the
// direction of the text around it, what breaks lines, and what nobody sees.
func acts(r rune) bool {
	switch {
	case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
		return true
	case r == '\u2028', r == '\u2029', r == '\ufeff', r >= 0xe0000 && r <= 0xe007f:
		return true
	}
	return false
}
