// Package systemd has the init system keep cgroups for Berth: the scopes of containers, the slices of pods, and the
// scope in which the monitors live. It speaks to it over one D-Bus connection, which is made when it is needed and
// made anew when systemd has dropped it. Six methods of systemd's manager and one property are all that it calls, so it
// does without the wrappers of go-systemd.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/godbus/dbus/v5"

	"berth/internal/fail"
)

// place is where systemd can be reached.
type place struct {
	path string
	bus  bool
}

// busSocket is where the system bus is.
const busSocket = "/run/dbus/system_bus_socket"

// usual are where systemd listens itself, which needs no bus, and the bus.
var usual = []place{{"/run/systemd/private", false}, {busSocket, true}}

// service is systemd's name on a bus, and of its interfaces.
const service = "org.freedesktop.systemd1"

// callTimeout bounds what systemd answers without waiting for a job.
const callTimeout = 25 * time.Second

// Manager speaks to systemd. The zero value is ready. Its methods may be called concurrently and, but for startScope,
// again.
type Manager struct {
	places  []place                                            // nil are the usual ones
	connect func(context.Context, []place) (*dbus.Conn, error) // nil is the function of this name

	mu      sync.Mutex // guards what follows, and is not held while systemd is waited for
	conn    *dbus.Conn
	calls   int         // under way over conn
	rest    *time.Timer // ends a connection that nobody uses
	dialing *dialing    // nil unless a connection is being made
}

// dialing is a connection that is being made. Whoever needs one waits for it, as long as it wants to.
type dialing struct {
	done chan struct{}
	err  error // after done
}

// restAfter is how long a connection is kept for the next call. systemd sends all that happens to it over its own
// socket, asked or not.
const restAfter = 5 * time.Second

// Close ends the connection. A later call makes another.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil {
		_ = m.conn.Close()
		m.conn = nil
	}
}

// begin takes the connection, for a call that done ends, and says whether it was there before. It waits no longer than
// ctx allows where one has to be made.
func (m *Manager) begin(ctx context.Context) (conn *dbus.Conn, old bool, err error) {
	for old = true; ; old = false {
		conn, d := take(m)
		if conn != nil {
			return conn, old, nil
		}
		select {
		case <-ctx.Done():
			return nil, false, fmt.Errorf("reach systemd: %w", context.Cause(ctx))
		case <-d.done:
		}
		if d.err != nil {
			return nil, false, d.err
		}
	}
}

// take returns the connection for a call, or the making of one, which it begins where it has to.
func take(m *Manager) (*dbus.Conn, *dialing) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil && m.conn.Connected() {
		m.calls++
		return m.conn, nil
	}
	m.conn = nil
	if m.dialing == nil {
		m.dialing = &dialing{done: make(chan struct{})}
		go dialFor(m, m.dialing)
	}
	return nil, m.dialing
}

// dialFor makes the connection, for all that wait for it. It is nobody's operation, so that a panic of the library ends
// here: it fails those that wait, and the next call tries anew.
func dialFor(m *Manager, d *dialing) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			stack := string(debug.Stack())
			dialed(m, d, nil, fail.New(errdefs.ErrInternal, "reach systemd: panic: %v; the daemon's log has the stack", p))
			slog.Error("panic while systemd is reached; please report it", "panic", p, "stack", stack)
		}
	}()
	reach := connect
	if m.connect != nil {
		reach = m.connect
	}
	conn, err := reach(ctx, m.places)
	dialed(m, d, conn, err)
}

// dialed tells all that wait for a connection what became of it.
func dialed(m *Manager, d *dialing, conn *dbus.Conn, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conn, d.err, m.dialing = conn, err, nil
	if conn != nil {
		restLater(m) // who has asked may be gone
	}
	close(d.done)
}

// done ends a call.
func (m *Manager) done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls--
	restLater(m)
}

// restLater ends the connection in a while, unless it is used by then. With mu held.
func restLater(m *Manager) {
	if m.rest == nil {
		m.rest = time.AfterFunc(restAfter, m.unused)
	} else {
		m.rest.Reset(restAfter)
	}
}

// unused ends the connection when there was no call in a while.
func (m *Manager) unused() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls == 0 && m.conn != nil {
		_ = m.conn.Close()
		m.conn = nil
	}
}

// connect connects to the first of the places that answers.
func connect(ctx context.Context, places []place) (*dbus.Conn, error) {
	if places == nil {
		places = usual
	}
	var errs []error
	for _, at := range places {
		conn, err := dial(ctx, at.path, at.bus)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("reach systemd: %w", errors.Join(errs...))
}

func dial(ctx context.Context, path string, bus bool) (*dbus.Conn, error) {
	var d net.Dialer
	sock, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(callTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	_ = sock.SetDeadline(until)
	conn, err := dbus.NewConn(sock)
	if err == nil {
		err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))})
	}
	switch {
	case err != nil:
	case bus:
		err = conn.Hello()
	default:
		err = greet(ctx, conn)
	}
	if err != nil {
		_ = sock.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return conn, sock.SetDeadline(time.Time{})
}

// greetPause is how long systemd may take to answer a greeting before it gets another.
const greetPause = 50 * time.Millisecond

// greet pings until the other side answers. What systemd reads together with the end of the authentication it leaves
// in its buffer until more comes, so a first call alone may wait for ever.
func greet(ctx context.Context, conn *dbus.Conn) error {
	answers := make(chan *dbus.Call, callTimeout/greetPause+1)
	for range cap(answers) {
		conn.Object(service, "/org/freedesktop/systemd1").GoWithContext(ctx, "org.freedesktop.DBus.Peer.Ping", 0, answers)
		select {
		case c := <-answers:
			return c.Err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(greetPause):
		}
	}
	return errors.New("systemd does not answer a greeting")
}

// drop forgets a connection that does not work.
func (m *Manager) drop(conn *dbus.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = conn.Close()
	if m.conn == conn {
		m.conn = nil
	}
}

// call calls a method of systemd's manager.
func (m *Manager) call(ctx context.Context, method string, args, out []any) error {
	return m.send(ctx, "/org/freedesktop/systemd1", service+"."+method, args, out)
}

// send calls a method of an object. One whose connection broke is called again over a fresh one: systemd executes
// itself anew, and the bus is restarted, and both drop everybody. So the method may be executed twice.
func (m *Manager) send(ctx context.Context, object dbus.ObjectPath, method string, args, out []any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, old, err := m.begin(ctx)
		if err == nil {
			err = conn.Object(service, object).CallWithContext(ctx, method, 0, args...).Store(out...)
			m.done()
			var said dbus.Error
			if err == nil || errors.As(err, &said) && !passing(said) {
				return err
			}
			m.drop(conn)
			if old && broken(err) {
				continue // at once: it was dropped between two calls
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("systemd does not answer: %w", err)
		case <-time.After(pause):
		}
	}
}

// passing says of what the other side said that it is of the connection, or of a moment in systemd's restart.
func passing(e dbus.Error) bool {
	switch e.Name {
	case "org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.Disconnected",
		"org.freedesktop.DBus.Error.ServiceUnknown",
		"org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.DBus.Error.Timeout":
		return true
	}
	return false
}

// broken says that the connection had ended.
func broken(err error) bool {
	return errors.Is(err, dbus.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, os.ErrClosed)
}

// named reports whether err is an answer of systemd with this name.
func named(err error, name string) bool {
	var said dbus.Error
	return errors.As(err, &said) && said.Name == service+"."+name
}

// property is one of a unit that is made.
type property struct {
	Name  string
	Value dbus.Variant
}

func set(name string, value any) property { return property{name, dbus.MakeVariant(value)} }

// aux is what StartTransientUnit takes of further units; there are none.
type aux struct {
	Name       string
	Properties []property
}

// startScope has systemd make a scope. errExists says that there is one of this name, in whichever state.
func (m *Manager) startScope(ctx context.Context, name string, properties []property) error {
	var job dbus.ObjectPath
	err := m.call(ctx, "Manager.StartTransientUnit", []any{name, "fail", properties, []aux{}}, []any{&job})
	if named(err, "UnitExists") {
		return errExists
	}
	if err != nil {
		return fmt.Errorf("have systemd make %s: %w", name, err)
	}
	return nil
}

var errExists = errors.New("the unit exists")

// stop has systemd stop a unit, and what is in it. It does not wait. nil when there is no such unit.
func (m *Manager) stop(ctx context.Context, name string) error {
	var job dbus.ObjectPath
	err := m.call(ctx, "Manager.StopUnit", []any{name, "replace"}, []any{&job})
	if err != nil && !named(err, "NoSuchUnit") {
		return fmt.Errorf("have systemd stop %s: %w", name, err)
	}
	return nil
}

// forget has systemd forget that a unit failed. nil when there is none.
func (m *Manager) forget(ctx context.Context, name string) error {
	err := m.call(ctx, "Manager.ResetFailedUnit", []any{name}, nil)
	if err != nil && !named(err, "NoSuchUnit") {
		return fmt.Errorf("have systemd forget %s: %w", name, err)
	}
	return nil
}

// unit is what is known of one.
type unit struct{ Name, Active string }

// units lists those that systemd knows and whose names match, as a shell would match them.
func (m *Manager) units(ctx context.Context, patterns ...string) ([]unit, error) {
	var found []struct {
		Name, Description, Load, Active, Sub, Following string
		Path                                            dbus.ObjectPath
		Job                                             uint32
		JobType                                         string
		JobPath                                         dbus.ObjectPath
	}
	if err := m.call(ctx, "Manager.ListUnitsByPatterns", []any{[]string{}, patterns}, []any{&found}); err != nil {
		return nil, fmt.Errorf("have systemd list units: %w", err)
	}
	var all []unit
	for _, f := range found {
		all = append(all, unit{f.Name, f.Active})
	}
	return all, nil
}

// cgroupOf is the path of a scope's cgroup, "" when it has none or is not known.
func (m *Manager) cgroupOf(ctx context.Context, scope string) (string, error) {
	object, err := m.object(ctx, scope)
	if object == "" || err != nil {
		return "", err
	}
	var group string
	err = m.property(ctx, object, "Scope", "ControlGroup", &group)
	if said := (dbus.Error{}); errors.As(err, &said) {
		return "", nil // it went meanwhile
	}
	return group, err
}

// active reports whether systemd takes a unit for running.
func (m *Manager) active(ctx context.Context, name string) (bool, error) {
	object, err := m.object(ctx, name)
	if object == "" || err != nil {
		return false, err
	}
	var state string
	err = m.property(ctx, object, "Unit", "ActiveState", &state)
	if said := (dbus.Error{}); errors.As(err, &said) {
		return false, nil
	}
	return state == "active", err
}

// object is the D-Bus object of a unit, "" when systemd does not know it.
func (m *Manager) object(ctx context.Context, name string) (dbus.ObjectPath, error) {
	var path dbus.ObjectPath
	err := m.call(ctx, "Manager.GetUnit", []any{name}, []any{&path})
	if named(err, "NoSuchUnit") {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("ask systemd for %s: %w", name, err)
	}
	return path, nil
}

func (m *Manager) property(ctx context.Context, object dbus.ObjectPath, kind, name string, out any) error {
	var v dbus.Variant
	err := m.send(ctx, object, "org.freedesktop.DBus.Properties.Get", []any{service + "." + kind, name}, []any{&v})
	if err != nil {
		return fmt.Errorf("ask systemd for %s of %s: %w", name, object, err)
	}
	return dbus.Store([]any{v.Value()}, out)
}
