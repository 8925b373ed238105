package callers

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// withValidTexts returns a copy of a message with "?" for what is no UTF-8 in its texts. Protobuf refuses to encode
// such a text, and with it the whole message: then one name that a pod chose, or one word of a program, would take the
// answer about all other pods with it.
func withValidTexts(m proto.Message) proto.Message {
	valid := proto.Clone(m)
	mendTexts(valid.ProtoReflect())
	return valid
}

func mendTexts(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			mendMap(f, v.Map())
		case f.IsList():
			for i := range v.List().Len() {
				if mended, changed := mendValue(f, v.List().Get(i)); changed {
					v.List().Set(i, mended)
				}
			}
		default:
			if mended, changed := mendValue(f, v); changed {
				m.Set(f, mended)
			}
		}
		return true
	})
}

func mendMap(f protoreflect.FieldDescriptor, entries protoreflect.Map) {
	var badKeys []protoreflect.MapKey
	entries.Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
		if mended, changed := mendValue(f.MapValue(), v); changed {
			entries.Set(key, mended)
		}
		if _, changed := mendValue(f.MapKey(), key.Value()); changed {
			badKeys = append(badKeys, key)
		}
		return true
	})
	for _, key := range badKeys {
		mended, _ := mendValue(f.MapKey(), key.Value())
		v := entries.Get(key)
		entries.Clear(key)
		entries.Set(mended.MapKey(), v)
	}
}

// mendValue returns a text in valid UTF-8, and whether it was not. A message it mends in place.
func mendValue(f protoreflect.FieldDescriptor, v protoreflect.Value) (_ protoreflect.Value, changed bool) {
	switch f.Kind() {
	case protoreflect.StringKind:
		valid := strings.ToValidUTF8(v.String(), "?")
		return protoreflect.ValueOfString(valid), valid != v.String()
	case protoreflect.MessageKind:
		mendTexts(v.Message())
	}
	return v, false
}
