package wire

import (
	"strconv"
	"unicode/utf8"
)

// Object is a type that is a JSON object: its members, in their order. A member with the zero value is left out unless
// it is marked as always there.
type Object interface{ members() []member }

type member struct {
	name   string
	at     any // a pointer to the field
	always bool
}

// Encode is the JSON of a Request, a Reply or what a monitor keeps in files. It gives what encoding/json does, without
// reflection: there is a monitor in memory for every pod, and that package would be a fifth of it.
func Encode(o Object) []byte { return appendObject(nil, o) }

// Decode reads a JSON object. Members that it does not know it passes over.
func Decode(data []byte, o Object) error {
	s := &scanner{data: data}
	if err := s.object(o, 0); err != nil {
		return err
	}
	return s.end()
}

func appendObject(b []byte, o Object) []byte {
	b = append(b, '{')
	empty := len(b)
	for _, m := range o.members() {
		if !m.always && isZero(m.at) {
			continue
		}
		if len(b) > empty {
			b = append(b, ',')
		}
		b = append(appendString(b, m.name), ':')
		b = appendValue(b, m.at)
	}
	return append(b, '}')
}

func isZero(at any) bool {
	switch p := at.(type) {
	case *string:
		return *p == ""
	case *bool:
		return !*p
	case *int:
		return *p == 0
	case *int32:
		return *p == 0
	case *int64:
		return *p == 0
	case *uint64:
		return *p == 0
	case *[]string:
		return len(*p) == 0
	case *[]Container:
		return len(*p) == 0
	case **Bundle:
		return *p == nil
	case **Log:
		return *p == nil
	case **Process:
		return *p == nil
	case **Exit:
		return *p == nil
	case **Owner:
		return *p == nil
	case **Dropped:
		return *p == nil
	}
	return false
}

func appendValue(b []byte, at any) []byte {
	switch p := at.(type) {
	case *string:
		return appendString(b, *p)
	case *bool:
		return strconv.AppendBool(b, *p)
	case *int:
		return strconv.AppendInt(b, int64(*p), 10)
	case *int32:
		return strconv.AppendInt(b, int64(*p), 10)
	case *int64:
		return strconv.AppendInt(b, *p, 10)
	case *uint64:
		return strconv.AppendUint(b, *p, 10)
	case *[]string:
		return appendList(b, len(*p), func(b []byte, i int) []byte { return appendString(b, (*p)[i]) })
	case *[]Container:
		return appendList(b, len(*p), func(b []byte, i int) []byte { return appendObject(b, &(*p)[i]) })
	case **Bundle:
		return appendObject(b, *p)
	case **Log:
		return appendObject(b, *p)
	case **Process:
		return appendObject(b, *p)
	case **Exit:
		return appendObject(b, *p)
	case **Owner:
		return appendObject(b, *p)
	case **Dropped:
		return appendObject(b, *p)
	case Object:
		return appendObject(b, p)
	}
	panic("wire: a field of a type without an encoding")
}

func appendList(b []byte, n int, item func(b []byte, i int) []byte) []byte {
	b = append(b, '[')
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = item(b, i)
	}
	return append(b, ']')
}

func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s { // what is not UTF-8 becomes U+FFFD
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// object reads one into o.
func (s *scanner) object(o Object, depth int) error {
	if depth > maxDepth || s.next() != '{' {
		return errSyntax
	}
	if s.peek() == '}' {
		s.next()
		return nil
	}
	members := o.members()
	for {
		if err := s.member(members, depth); err != nil {
			return err
		}
		switch s.next() {
		case ',':
		case '}':
			return nil
		default:
			return errSyntax
		}
	}
}

func (s *scanner) member(members []member, depth int) error {
	key, err := s.text()
	if err != nil || s.next() != ':' {
		return errSyntax
	}
	for _, m := range members {
		if m.name == key {
			return s.value(m.at, depth+1)
		}
	}
	return s.skip(depth + 1)
}

func (s *scanner) value(at any, depth int) (err error) {
	if s.peek() == 'n' { // null leaves it as it is
		return s.skip(depth)
	}
	switch p := at.(type) {
	case *string:
		*p, err = s.text()
	case *bool:
		*p, err = strconv.ParseBool(s.word())
	case *int:
		*p, err = strconv.Atoi(s.word())
	case *int32:
		var n int64
		n, err = strconv.ParseInt(s.word(), 10, 32)
		*p = int32(n)
	case *int64:
		*p, err = strconv.ParseInt(s.word(), 10, 64)
	case *uint64:
		*p, err = strconv.ParseUint(s.word(), 10, 64)
	default:
		return s.nested(at, depth)
	}
	if err != nil {
		return errSyntax
	}
	return nil
}

// nested reads a list or an object.
func (s *scanner) nested(at any, depth int) (err error) {
	switch p := at.(type) {
	case *[]string:
		*p, err = s.list()
		return err
	case **Bundle:
		*p = new(Bundle)
		return s.object(*p, depth)
	case **Log:
		*p = new(Log)
		return s.object(*p, depth)
	case **Process:
		*p = new(Process)
		return s.object(*p, depth)
	case **Exit:
		*p = new(Exit)
		return s.object(*p, depth)
	case **Owner:
		*p = new(Owner)
		return s.object(*p, depth)
	case **Dropped:
		*p = new(Dropped)
		return s.object(*p, depth)
	case Object:
		return s.object(p, depth)
	}
	return s.skip(depth) // what only the daemon reads
}
