// Package supervisor tells the service manager that started the daemon how the daemon is: ready, stopping, alive. It
// speaks systemd's notification protocol, which is one datagram for each message. Without such a manager nothing is
// sent.
package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Supervisor is who started the daemon. Its methods may be called concurrently.
type Supervisor struct {
	Log *slog.Logger // hears what could not be told; nil hears nothing

	socket   string        // empty: the daemon has no supervisor
	watchdog time.Duration // how long it waits for a sign of life; 0: it does not
}

// FromEnvironment finds the supervisor that the environment names, and takes it out of the environment: an OCI runtime
// that inherited it would hand it to a container.
func FromEnvironment() *Supervisor {
	s := &Supervisor{socket: os.Getenv("NOTIFY_SOCKET")}
	// The time is meant for the process named, if one is named: a manager's own, or a shell's in between.
	if pid := os.Getenv("WATCHDOG_PID"); pid == "" || pid == strconv.Itoa(os.Getpid()) {
		if usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64); err == nil && usec > 0 && s.socket != "" {
			s.watchdog = time.Duration(usec) * time.Microsecond
		}
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"} {
		_ = os.Unsetenv(name) // of a name that is a good one
	}
	return s
}

// Ready says that the daemon serves, with a line for people.
func (s *Supervisor) Ready(status string) { s.tell("READY=1\nSTATUS=" + status) }

// Reloading says that the daemon takes over its configuration; Ready says that it is done.
func (s *Supervisor) Reloading() {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // of a clock that every Linux has
	s.tell(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d\nSTATUS=Reloading the configuration", now.Nano()/1000))
}

// Stopping says that the daemon ends because it was asked to.
func (s *Supervisor) Stopping(status string) { s.tell("STOPPING=1\nSTATUS=" + status) }

// Watch gives signs of life for as long as alive returns nil, until ctx ends. It returns at once when the supervisor
// does not wait for them. alive gets a deadline.
func (s *Supervisor) Watch(ctx context.Context, alive func(context.Context) error) {
	if s.watchdog == 0 {
		return
	}
	period := s.watchdog / 3 // so that one late answer is no death
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		if err := within(ctx, period, alive); err == nil {
			s.tell("WATCHDOG=1")
		} else if ctx.Err() == nil {
			s.warn("the daemon does not answer itself; the service manager will restart it if that lasts", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func within(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return f(ctx)
}

// tell sends one message. That it cannot be sent must not keep the daemon from its work.
func (s *Supervisor) tell(message string) {
	if s.socket == "" {
		return
	}
	if err := send(s.socket, message); err != nil {
		s.warn("the service manager could not be told how the daemon is", err)
	}
}

func send(socket, message string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(message)); err != nil {
		return fmt.Errorf("send to %s: %w", socket, err)
	}
	return nil
}

// sendTimeout is how long a manager whose socket is full is waited for.
const sendTimeout = 5 * time.Second

func (s *Supervisor) warn(what string, err error) {
	if s.Log != nil {
		s.Log.Warn(what, "error", err)
	}
}
