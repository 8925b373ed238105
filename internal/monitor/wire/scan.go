package wire

import (
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

var errSyntax = errors.New("the message is not a JSON object as it should be")

// maxDepth bounds how deep objects may be nested.
const maxDepth = 32

// scanner reads JSON.
type scanner struct {
	data []byte
	at   int
}

func (s *scanner) peek() byte {
	for s.at < len(s.data) {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) next() byte {
	c := s.peek()
	if s.at < len(s.data) {
		s.at++
	}
	return c
}

func (s *scanner) end() error {
	if s.peek() != 0 || s.at < len(s.data) {
		return errSyntax
	}
	return nil
}

// word reads a number, true, false or null.
func (s *scanner) word() string {
	s.peek()
	from := s.at
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ',', '}', ']', ':', ' ', '\t', '\n', '\r', '"', '{', '[':
			return string(s.data[from:s.at])
		}
		s.at++
	}
	return string(s.data[from:s.at])
}

func (s *scanner) list() ([]string, error) {
	if s.next() != '[' {
		return nil, errSyntax
	}
	var out []string
	if s.peek() == ']' {
		s.next()
		return out, nil
	}
	for {
		item, err := s.text()
		if err != nil {
			return nil, err
		}
		out = append(out, item)
		switch s.next() {
		case ',':
		case ']':
			return out, nil
		default:
			return nil, errSyntax
		}
	}
}

func (s *scanner) text() (string, error) {
	if s.next() != '"' {
		return "", errSyntax
	}
	var out []byte
	for s.at < len(s.data) {
		c := s.data[s.at]
		s.at++
		switch {
		case c == '"':
			return string(out), nil
		case c == '\\':
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, r)
		case c < 0x20:
			return "", errSyntax
		default:
			out = append(out, c)
		}
	}
	return "", errSyntax
}

func (s *scanner) escape() (rune, error) {
	if s.at >= len(s.data) {
		return 0, errSyntax
	}
	c := s.data[s.at]
	s.at++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		return s.unicode()
	}
	return 0, errSyntax
}

func (s *scanner) unicode() (rune, error) {
	r, err := s.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if s.at+1 < len(s.data) && s.data[s.at] == '\\' && s.data[s.at+1] == 'u' {
		s.at += 2
		low, err := s.hex4()
		return utf16.DecodeRune(r, low), err
	}
	return utf8.RuneError, nil
}

func (s *scanner) hex4() (rune, error) {
	if s.at+4 > len(s.data) {
		return 0, errSyntax
	}
	n, err := strconv.ParseUint(string(s.data[s.at:s.at+4]), 16, 16)
	s.at += 4
	if err != nil {
		return 0, errSyntax
	}
	return rune(n), nil
}

// skip passes over one value of any kind.
func (s *scanner) skip(depth int) error {
	if depth > maxDepth {
		return errSyntax
	}
	switch s.peek() {
	case '"':
		_, err := s.text()
		return err
	case '{':
		return s.skipAll(depth, '}', true)
	case '[':
		return s.skipAll(depth, ']', false)
	}
	if s.word() == "" {
		return errSyntax
	}
	return nil
}

func (s *scanner) skipAll(depth int, closing byte, keyed bool) error {
	s.next()
	if s.peek() == closing {
		s.next()
		return nil
	}
	for {
		if keyed {
			if _, err := s.text(); err != nil || s.next() != ':' {
				return errSyntax
			}
		}
		if err := s.skip(depth + 1); err != nil {
			return err
		}
		switch s.next() {
		case ',':
		case closing:
			return nil
		default:
			return errSyntax
		}
	}
}
