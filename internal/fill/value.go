package fill

import (
	"cmp"
	"errors"
	"fmt"
)

// elements are how many elements a value has, and which, for a range with so many variables.
func elements(v any, variables int) (int, func(int) any, error) {
	switch v := v.(type) {
	case []string:
		return len(v), func(i int) any { return v[i] }, nil
	case int:
		if variables < 2 {
			return v, func(i int) any { return i }, nil
		}
	}
	return 0, nil, fmt.Errorf("a list is wanted, or a number and one variable, not %v", v)
}

// truth reports whether a value is neither empty nor zero.
func truth(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case []string:
		return len(v) > 0
	case int:
		return v != 0
	case bool:
		return v
	case Values:
		return len(v) > 0
	}
	return false
}

// functions are those of text/template that there are.
var functions = map[string]func([]any) (any, error){
	"and": last, "or": last,
	"not":   single(func(v any) (any, error) { return !truth(v), nil }),
	"len":   single(length),
	"index": index,
	"eq":    equal,
	"ne":    compared(func(a, b any) (bool, error) { same, err := alike(a, b); return !same, err }),
	"lt":    compared(func(a, b any) (bool, error) { n, err := order(a, b); return n < 0, err }),
	"le":    compared(func(a, b any) (bool, error) { n, err := order(a, b); return n <= 0, err }),
	"gt":    compared(func(a, b any) (bool, error) { n, err := order(a, b); return n > 0, err }),
	"ge":    compared(func(a, b any) (bool, error) { n, err := order(a, b); return n >= 0, err }),
	"print": func(v []any) (any, error) { return fmt.Sprint(v...), nil }, "printf": printf,
	"println": func(v []any) (any, error) { return fmt.Sprintln(v...), nil },
}

// names are the functions, for the parser.
var names = func() map[string]any {
	all := map[string]any{}
	for name := range functions {
		all[name] = true
	}
	return all
}()

// decides reports whether the operands after v do not count.
func decides(function string, v any) bool {
	return function == "and" && !truth(v) || function == "or" && truth(v)
}

var errOperands = errors.New("wrong number of operands")

// last is what and and or come to when no operand before the last has decided.
func last(v []any) (any, error) {
	if len(v) == 0 {
		return nil, errOperands
	}
	return v[len(v)-1], nil
}

func single(f func(any) (any, error)) func([]any) (any, error) {
	return func(v []any) (any, error) {
		if len(v) != 1 {
			return nil, errOperands
		}
		return f(v[0])
	}
}

func length(v any) (any, error) {
	switch v := v.(type) {
	case string:
		return len(v), nil
	case []string:
		return len(v), nil
	case Values:
		return len(v), nil
	}
	return nil, fmt.Errorf("%v has no length", v)
}

// index is an element of a list, or a byte of a text or of such an element.
func index(v []any) (any, error) {
	if len(v) == 0 {
		return nil, errOperands
	}
	of := v[0]
	for _, at := range v[1:] {
		length, err := length(of)
		i, isNumber := at.(int)
		switch list, isList := of.([]string); {
		case err != nil || !isNumber:
			return nil, fmt.Errorf("a list and a number are wanted, not %v and %v", of, at)
		case i < 0 || i >= length.(int):
			return nil, fmt.Errorf("index out of range: %d of %d", i, length)
		case isList:
			of = list[i]
		default:
			text, _ := of.(string)
			of = int(text[i])
		}
	}
	return of, nil
}

// equal reports whether the first operand is alike to any of the others.
func equal(v []any) (any, error) {
	if len(v) < 2 {
		return nil, errOperands
	}
	for _, other := range v[1:] {
		if same, err := alike(v[0], other); same || err != nil {
			return same, err
		}
	}
	return false, nil
}

func compared(f func(a, b any) (bool, error)) func([]any) (any, error) {
	return func(v []any) (any, error) {
		if len(v) != 2 {
			return nil, errOperands
		}
		return f(v[0], v[1])
	}
}

func alike(a, b any) (bool, error) {
	if x, ok := a.(bool); ok {
		if y, ok := b.(bool); ok {
			return x == y, nil
		}
	}
	n, err := order(a, b)
	return n == 0, err
}

// order compares two texts or two numbers.
func order(a, b any) (int, error) {
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			return cmp.Compare(a, b), nil
		}
	case int:
		if b, ok := b.(int); ok {
			return cmp.Compare(a, b), nil
		}
	}
	return 0, fmt.Errorf("%v and %v cannot be compared", a, b)
}

func printf(v []any) (any, error) {
	if len(v) == 0 {
		return nil, errOperands
	}
	format, ok := v[0].(string)
	if !ok {
		return nil, fmt.Errorf("%v is no format", v[0])
	}
	return fmt.Sprintf(format, v[1:]...), nil
}
