package session

import (
	"context"
	"log/slog"

	"berth/internal/runtime"
	"berth/internal/sandbox"
	"berth/internal/spec"
)

// Finder finds pods and containers, also those that are not listed. An error says that there is none.
type Finder interface {
	// Pod and Container return what is known. They never wait.
	Pod(id sandbox.ID) (*sandbox.Record, error)
	Container(id sandbox.ID) (*sandbox.Record, *sandbox.Container, error)
	// Adopted returns what is known of a pod once the daemon knows what of it runs, or the error of ctx.
	Adopted(ctx context.Context, pod sandbox.ID) (*sandbox.Record, error)
}

// Runtime does to the processes of a pod what a session asks for. None of it may be repeated but Resize and ReopenLog.
type Runtime interface {
	Exec(ctx context.Context, pod, ctr string, e runtime.Exec) (runtime.ExecResult, error)
	Session(ctx context.Context, pod, ctr string, s runtime.Session) (exitCode int, err error)
	Attach(ctx context.Context, pod, ctr string, a runtime.Attach) error
	Resize(ctx context.Context, pod, ctr string, width, height uint16) error
	ReopenLog(ctx context.Context, pod, ctr string, log runtime.Log) error
}

// Sessions reaches into running containers. All fields are required, and set before the first call.
type Sessions struct {
	Pods    Finder
	Runtime Runtime
	// Handler is how a pod's OCI runtime is called.
	Handler func(r *sandbox.Record) (runtime.Handler, error)
	Layout  sandbox.Layout
	Host    spec.Host
	Log     *slog.Logger

	outputs outputs
}
