package systemd

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
)

// fake is a systemd that knows one scope. It answers what setProperties asks for, and keeps the properties.
type fake struct {
	scope string
	// applied, which may be nil, does what systemd does to the cgroup when properties were set.
	applied func(properties map[string]dbus.Variant)

	mu         sync.Mutex // guards what follows
	properties map[string]dbus.Variant
}

// faked returns the units of a fake, whose cgroups are plain files in the scope's directory, and that directory.
func faked(t *testing.T, f *fake, files map[string]string) (u *Units, dir string) {
	t.Helper()
	u = &Units{Manager: &Manager{}, Instance: "berth-test", Mount: t.TempDir()}
	dir = filepath.Join(u.Mount, "pod.slice", f.scope)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	here, there := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- f.serve(there) }()
	conn, err := dbus.NewConn(here)
	if err == nil {
		err = conn.Auth([]dbus.Auth{dbus.AuthExternal("0")})
	}
	if err != nil {
		t.Fatal(err)
	}
	u.Manager.conn = conn
	t.Cleanup(func() {
		u.Manager.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return u, dir
}

// serve answers one connection until the other side closes it.
func (f *fake) serve(conn net.Conn) error {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for line := ""; line != "BEGIN\r\n"; {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return err
		}
		switch strings.TrimLeft(line, "\x00") {
		case "AUTH\r\n":
			_, err = fmt.Fprint(conn, "REJECTED EXTERNAL\r\n")
		case "BEGIN\r\n":
		default:
			_, err = fmt.Fprint(conn, "OK 00000000000000000000000000000000\r\n")
		}
		if err != nil {
			return err
		}
	}
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return nil // it was closed
		}
		answer := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
		}}
		value, refused := f.answer(call)
		if refused != "" {
			answer.Type = dbus.TypeError
			answer.Headers[dbus.FieldErrorName] = dbus.MakeVariant("org.freedesktop.DBus.Error." + refused)
		}
		if value != nil {
			answer.Body = []any{value}
			answer.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(value))
		}
		if err := answer.EncodeTo(conn, binary.LittleEndian); err != nil {
			return err
		}
	}
}

// answer does what a call asks for. refused is the name of an error.
func (f *fake) answer(call *dbus.Message) (value any, refused string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch method := call.Headers[dbus.FieldMember].Value(); method {
	case "GetUnit":
		return dbus.ObjectPath("/scope"), ""
	case "Get":
		v, ok := f.properties[call.Body[1].(string)]
		if !ok {
			return nil, "UnknownProperty"
		}
		return v, ""
	case "SetUnitProperties":
		next := maps.Clone(f.properties)
		for _, p := range call.Body[2].([][]any) {
			name := p[0].(string)
			if _, ok := next[name]; !ok {
				return nil, "PropertyReadOnly" // as systemd says of what it does not know
			}
			next[name] = p[1].(dbus.Variant)
		}
		f.properties = next
		if f.applied != nil {
			f.applied(next)
		}
		return nil, ""
	}
	return nil, "UnknownMethod"
}

// has is the value of a property.
func (f *fake) has(name string) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.properties[name].Value()
}
