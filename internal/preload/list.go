package preload

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/fail"
	"berth/internal/image/reference"
	"berth/internal/limit"
)

// readNames reads a list of images: a reference a line. What follows a # at the beginning of a line or after a space is
// a comment. Lines that are no reference are told in wrong, and do not keep the others from being used. With err the
// list could not be read.
func readNames(r io.Reader) (names []string, wrong, err error) {
	most := limit.PreloadList
	text, err := io.ReadAll(io.LimitReader(r, most.Limit+1))
	if err != nil {
		return nil, nil, err
	}
	if err := most.Check(int64(len(text))); err != nil {
		return nil, most.Exceeded(), nil
	}
	var bad []string
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	seen := map[string]bool{}
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(strings.TrimPrefix(lines.Text(), "\ufeff"))
		if strings.HasPrefix(line, "#") {
			continue
		}
		if at := strings.IndexAny(line, " \t"); at >= 0 && strings.HasPrefix(strings.TrimSpace(line[at:]), "#") {
			line = line[:at]
		}
		if line == "" {
			continue
		}
		ref, err := reference.Parse(line)
		if err != nil {
			bad = append(bad, fmt.Sprintf("line %d: %v", n, err))
			continue
		}
		if name := ref.String(); !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	if len(bad) > 0 {
		more := ""
		if len(bad) > 3 {
			bad, more = bad[:3], fmt.Sprintf("; and %d more lines", len(bad)-3)
		}
		wrong = fail.New(errdefs.ErrInvalidArgument, "%s%s", strings.Join(bad, "; "), more)
	}
	return names, wrong, nil
}

// hostOf is the registry of a name.
func hostOf(name string) string {
	host, _, _ := strings.Cut(name, "/")
	return host
}
