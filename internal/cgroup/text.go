package cgroup

import (
	"bytes"
	"iter"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
)

// number reads one number, or max, which is Unlimited.
func number(text []byte) (uint64, bool) {
	text = bytes.TrimSpace(text)
	if string(text) == "max" {
		return Unlimited, true
	}
	if len(text) == 0 {
		return 0, false
	}
	var n uint64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		d := uint64(c - '0')
		if n > (math.MaxUint64-d)/10 {
			return Unlimited, true
		}
		n = n*10 + d
	}
	return n, true
}

func lines(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(text) > 0 {
			var line []byte
			line, text, _ = bytes.Cut(text, []byte{'\n'})
			if !yield(line) {
				return
			}
		}
	}
}

// Fields reads lines of a key and a number.
func Fields(text []byte) iter.Seq2[[]byte, uint64] {
	return func(yield func([]byte, uint64) bool) {
		for line := range lines(text) {
			key, rest := word(line)
			if n, ok := number(rest); ok && !yield(key, n) {
				return
			}
		}
	}
}

// word cuts off the first word of a line.
func word(line []byte) (first, rest []byte) {
	first, rest, _ = bytes.Cut(line, []byte{' '})
	return first, rest
}

// pairOf reads key=number.
func pairOf(text []byte) (key []byte, value uint64, ok bool) {
	key, rest, ok := bytes.Cut(text, []byte{'='})
	if !ok {
		return nil, 0, false
	}
	value, ok = number(rest)
	return key, value, ok
}

// deviceNumber reads major:minor.
func deviceNumber(text []byte) (major, minor uint32, ok bool) {
	a, b, _ := bytes.Cut(text, []byte{':'})
	x, okA := number(a)
	y, okB := number(b)
	return uint32(x), uint32(y), okA && okB
}

// pressure reads a file of PSI: a line each for some and full, the total in microseconds.
func pressure(text []byte) Pressure {
	p := Pressure{Known: len(text) > 0}
	for line := range lines(text) {
		kind, rest := word(line)
		to := &p.Some
		if string(kind) == "full" {
			to = &p.Full
		}
		for len(rest) > 0 {
			var pair []byte
			pair, rest = word(rest)
			key, value, _ := bytes.Cut(pair, []byte{'='})
			switch string(key) {
			case "avg10":
				to.Avg10 = percent(value)
			case "avg60":
				to.Avg60 = percent(value)
			case "avg300":
				to.Avg300 = percent(value)
			case "total":
				n, _ := number(value)
				to.Total = n * 1000
			}
		}
	}
	return p
}

func percent(text []byte) float64 {
	f, _ := strconv.ParseFloat(string(text), 64)
	return f
}

// hugeSizes are the sizes of huge pages that this kernel has, as the files of cgroups name them.
var hugeSizes = sync.OnceValue(func() []string {
	entries, _ := os.ReadDir("/sys/kernel/mm/hugepages") // without it there are none
	var sizes []string
	for _, e := range entries {
		kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"), 10, 64)
		switch {
		case err != nil:
		case kb >= 1<<20:
			sizes = append(sizes, strconv.FormatUint(kb>>20, 10)+"GB")
		case kb >= 1<<10:
			sizes = append(sizes, strconv.FormatUint(kb>>10, 10)+"MB")
		default:
			sizes = append(sizes, strconv.FormatUint(kb, 10)+"KB")
		}
	}
	return sizes
})
