package nri

import (
	"context"
	"strings"
	"time"

	"github.com/containerd/ttrpc"
)

// synchronizeMethod is the end of the full name of the request that shows a plugin what there is.
const synchronizeMethod = "/Synchronize"

// bound sees to it that a request to a plugin ends when its time is over, and that a synchronisation is split into
// messages by their size (sendSplit). For the time it does two things that the adaptation does not:
//
//   - Synchronize has a timeout of its own. The adaptation gives every request the same time, so the deadline that it
//     has set is moved by the difference. Several messages of one synchronisation share its context, and so the new
//     deadline.
//   - A request also ends in time where its message cannot be sent. ttRPC writes without a deadline: a plugin that is
//     stopped and does not read would hold up the write, and with it all requests to all plugins, once the socket's
//     buffer is full. The write ends when the adaptation closes the connection.
//
// synchronizationExtra is how much longer than another request a synchronisation may take.
func bound(synchronizationExtra time.Duration) ttrpc.UnaryClientInterceptor {
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
		sent := make(chan error, 1)
		go func() { // resp is read only after sent
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
