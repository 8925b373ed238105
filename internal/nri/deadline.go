package nri

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/ttrpc"
)

// synchronizeMethod is the end of the full name of the request that shows a plugin what there is.
const synchronizeMethod = "/Synchronize"

// maxUnsent is how many requests to one plugin may be left unsent, each with its message, before it is dropped.
const maxUnsent = 8

// bounded has each connection use an interceptor of its own.
func bounded(synchronizationExtra time.Duration) ttrpc.ClientOpts {
	return func(c *ttrpc.Client) { ttrpc.WithUnaryClientInterceptor(bound(synchronizationExtra))(c) }
}

// bound is the interceptor of one connection. It sees to it that a request to a plugin ends when its time is over, and
// that a synchronisation is split into messages by their size (sendSplit). For the time it does three things that the
// adaptation does not:
//
//   - Synchronize has a timeout of its own. The adaptation gives every request the same time, so the deadline that it
//     has set is moved by the difference. Several messages of one synchronisation share its context, and so the new
//     deadline.
//   - A request also ends in time where its message cannot be sent. ttRPC writes without a deadline: a plugin that is
//     stopped and does not read would hold up the write, and with it all requests to all plugins, once the socket's
//     buffer is full. The write ends when the adaptation closes the connection.
//   - A plugin for which more than maxUnsent requests are left so is taken for one whose connection is closed. The
//     adaptation would never close that of a plugin that asks to be kept when it does not answer in time.
//
// synchronizationExtra is how much longer than another request a synchronisation may take.
func bound(synchronizationExtra time.Duration) ttrpc.UnaryClientInterceptor {
	var unsent atomic.Int64 // a request that is under way is among them
	return func(
		ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, info *ttrpc.UnaryClientInfo, send ttrpc.Invoker,
	) error {
		deadline, ok := ctx.Deadline()
		synchronises := strings.HasSuffix(info.FullMethod, synchronizeMethod)
		if ok && synchronises {
			deadline = deadline.Add(synchronizationExtra)
			longer, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
			defer cancel()
			ctx = longer
			req.TimeoutNano = int64(time.Until(deadline))
		}
		if unsent.Add(1) > maxUnsent+1 {
			unsent.Add(-1)
			return fmt.Errorf("it reads nothing, and %d requests could not be sent to it: %w", maxUnsent+1, ttrpc.ErrClosed)
		}
		sent := make(chan error, 1)
		go func() { // resp is read only after sent
			defer unsent.Add(-1)
			if synchronises {
				sent <- sendSplit(ctx, req, resp, send)
				return
			}
			sent <- send(ctx, req, resp)
		}()
		select {
		case err := <-sent:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
