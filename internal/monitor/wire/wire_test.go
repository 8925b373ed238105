package wire

import (
	"encoding/json"
	"math/rand"
	"reflect"
	"testing"
	"testing/quick"
	"unicode/utf8"
)

// valid makes a value as quick does, with strings that are UTF-8: JSON has no others.
func valid(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			v.SetString("\"\\\n\u2028<&>\U0001F600")
		}
	case reflect.Pointer:
		if !v.IsNil() {
			valid(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			valid(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			valid(v.Index(i))
		}
	}
}

// TestSameAsEncodingJSON checks every type both ways against encoding/json, which the daemon uses.
func TestSameAsEncodingJSON(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for _, proto := range []Object{
		&Request{}, &Bundle{}, &Log{}, &Process{}, &Exit{}, &Dropped{}, &Container{}, &Reply{},
	} {
		typ := reflect.TypeOf(proto).Elem()
		for range 300 {
			v, _ := quick.Value(typ, r)
			p := reflect.New(typ)
			p.Elem().Set(v)
			valid(p.Elem())
			data := Encode(p.Interface().(Object))
			back := reflect.New(typ)
			if err := json.Unmarshal(data, back.Interface()); err != nil {
				t.Fatalf("%s: %v", data, err)
			}
			if got, want := marshal(t, back), marshal(t, p); got != want {
				t.Fatalf("encoded %s, wanted %s", got, want)
			}
			if typ == reflect.TypeOf(Reply{}) {
				continue // a monitor reads none
			}
			again := reflect.New(typ)
			if err := Decode([]byte(marshal(t, p)), again.Interface().(Object)); err != nil {
				t.Fatalf("decode %s: %v", marshal(t, p), err)
			}
			if got, want := marshal(t, again), marshal(t, p); got != want {
				t.Fatalf("decoded %s, wanted %s", got, want)
			}
		}
	}
}

func marshal(t *testing.T, v reflect.Value) string {
	t.Helper()
	data, err := json.Marshal(v.Interface())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestDecodePassesOver(t *testing.T) {
	var r Request
	err := Decode(
		[]byte(
			` { "new" : [1, {"a":[null,true,"]"]}, -2.5e3], "op":"st\u0061rt\n", "log":null, "id": 7 , "create":{"x":{},"runtime":"r"} } `), &r)
	if err != nil || r.Op != "start\n" || r.ID != 7 || r.Log != nil || r.Create == nil || r.Create.Runtime != "r" {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{}`, `{"id":1,"op":"hello"}`,
		`{"id":1,"create":{"args":["a"],"log":{"dir":"/","path":"x"}}}`, `{"id":-1}`, `[`, `{"a":` + "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var a, b Request
		if Decode(data, &a) != nil {
			return
		}
		if err := Decode(Encode(&a), &b); err != nil || string(Encode(&a)) != string(Encode(&b)) {
			t.Fatalf("%s: %s, then %s, %v", data, Encode(&a), Encode(&b), err)
		}
	})
}
