package image

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/fail"
)

// target is the platform for which images are chosen.
type target struct {
	platforms.MatchComparer
	name string
}

// targetFor parses a platform; empty stands for this machine's.
func targetFor(platform string) (target, error) {
	if platform == "" {
		p := machine()
		return target{platforms.Only(p), platforms.Format(p)}, nil
	}
	p, err := platforms.Parse(platform)
	if err != nil {
		return target{}, fail.New(errdefs.ErrInvalidArgument, "platform %q: %w", platform, err)
	}
	// The library makes a list of all lower variants, so their number is bounded first.
	n, err := strconv.ParseFloat(strings.TrimPrefix(p.Variant, "v"), 64)
	if err == nil && n >= 100 || len(p.Variant) > 32 {
		return target{}, fail.New(errdefs.ErrInvalidArgument, "platform %q: there is no such variant", platform)
	}
	return target{platforms.Only(p), platforms.Format(p)}, nil
}

// compare compares two platforms as records have them: the greater one suits the target better. One that does not match
// it, or that no record tells, suits it least.
func (t target) compare(a, b string) int {
	x, errX := platforms.Parse(a)
	y, errY := platforms.Parse(b)
	fitsX, fitsY := errX == nil && t.Match(x), errY == nil && t.Match(y)
	switch {
	case fitsX && (!fitsY || t.Less(x, y)):
		return 1
	case fitsY && (!fitsX || t.Less(y, x)):
		return -1
	}
	return 0
}

// machine returns this machine's platform. It adds the variant of amd64, which the library leaves out.
func machine() ocispec.Platform {
	p := platforms.DefaultSpec()
	if p.Architecture != "amd64" {
		return p
	}
	if info, err := os.Open("/proc/cpuinfo"); err == nil {
		defer info.Close()
		p.Variant = amd64Variant(processorFlags(info))
	}
	return p
}

// processorFlags returns the flags of the first processor in /proc/cpuinfo.
func processorFlags(info io.Reader) []string {
	lines := bufio.NewScanner(info)
	for lines.Scan() {
		if name, flags, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "flags" {
			return strings.Fields(flags)
		}
	}
	return nil
}

// amd64Levels has the flags that each level of the x86-64 psABI adds, by Linux's names.
var amd64Levels = [][]string{
	{"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"},
	{"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"},
	{"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}

// amd64Variant returns the highest level of which the processor has all flags; empty for the first level.
func amd64Variant(flags []string) string {
	variant := ""
	for i, level := range amd64Levels {
		if slices.ContainsFunc(level, func(f string) bool { return !slices.Contains(flags, f) }) {
			break
		}
		variant = "v" + strconv.Itoa(i+2)
	}
	return variant
}

func platformOf(img ocispec.Image) ocispec.Platform { return platforms.Normalize(img.Platform) }

// maxOffered bounds the number of platforms that an error names.
const maxOffered = 16

// offer formats a list of platforms for an error.
func offer(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if more := len(names) - maxOffered; more > 0 {
		names = append(names[:maxOffered:maxOffered], "and "+strconv.Itoa(more)+" more")
	}
	return strings.Join(names, ", ")
}
