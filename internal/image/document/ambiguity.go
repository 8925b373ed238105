package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode"

	"berth/internal/limit"
)

// unambiguous refuses a JSON document that two readers could understand differently: one that is no object, or in which
// a key stands twice. encoding/json takes the last, others the first, and whoever judged the image may have read the
// other one. Where keys are fixed, those that differ only in case are the same: encoding/json takes each for the other.
func unambiguous(raw []byte) error { return unambiguousOf(raw, limit.Budget{}) }

// unambiguousOf does the same for a document that may have so many values, those of its lists and objects counted: each
// may become a structure of more than a hundred bytes.
func unambiguousOf(raw []byte, most limit.Budget) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	var open []object
	for first, tokens := true, 0; first || len(open) > 0; first = false {
		token, err := d.Token()
		if err != nil {
			return err
		}
		tokens++
		if err := most.Check(int64(tokens)); err != nil {
			return err
		}
		if first && token != json.Delim('{') {
			return errors.New("it is no JSON object")
		}
		if open, err = step(open, token); err != nil {
			return err
		}
	}
	return nil
}

// CheckValues refuses a JSON document with more values than limit.DocumentValues, before they become structures.
func CheckValues(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	for tokens := int64(1); ; tokens++ {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := limit.DocumentValues.Check(tokens); err != nil {
			return err
		}
	}
}

// object is one that the walk is in, or an array.
type object struct {
	name  string // its own key; of an array's member, the array's
	array bool
	keys  map[string]struct{} // nil before the first
	fixed bool                // its keys are those of a structure, not of a map
	key   string              // that the next value belongs to
	value bool                // what comes next is a value
}

// fixedKeys are the objects of manifests, indexes and configs that are structures. Others may be maps, such as labels.
var fixedKeys = []string{"", "config", "rootfs", "layers", "manifests", "platform", "subject"}

func step(open []object, token json.Token) ([]object, error) {
	var in *object
	if len(open) > 0 {
		in = &open[len(open)-1]
	}
	switch delim, _ := token.(json.Delim); {
	case delim == '}' || delim == ']':
		return open[:len(open)-1], nil
	case in != nil && !in.array && !in.value:
		return open, in.add(token.(string))
	case delim == '{' || delim == '[':
		o := object{value: true, array: true}
		if in != nil {
			o.name, in.value = in.next()
		}
		if delim == '{' {
			o.array, o.value, o.fixed = false, false, slices.Contains(fixedKeys, o.name)
		}
		return append(open, o), nil
	case in != nil:
		_, in.value = in.next()
	}
	return open, nil
}

// next is the name of what the object's next value is, and whether yet another value follows it at once.
func (o *object) next() (name string, more bool) {
	if o.array {
		return o.name, true
	}
	return o.key, false
}

func (o *object) add(key string) error {
	same := key
	if o.fixed {
		same = fold(key)
	}
	if _, twice := o.keys[same]; twice {
		return fmt.Errorf("it has the key %q twice", key)
	}
	if o.keys == nil {
		o.keys = map[string]struct{}{}
	}
	o.keys[same] = struct{}{}
	o.key, o.value = key, true
	return nil
}

// fold makes names equal that differ only in case, as encoding/json compares them.
func fold(s string) string {
	out := []rune(s)
	for i, r := range out {
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			out[i] = min(out[i], next)
		}
	}
	return string(out)
}
