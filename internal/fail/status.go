package fail

import (
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// domain is where the reasons in the details of a status come from, as google.rpc.ErrorInfo wants it.
const domain = "berth"

// Status is the one place where an error becomes a status of gRPC: with the code of its kind, the word that a kubelet
// looks for before its text, and, where they are known, its details as google.rpc.ErrorInfo. A status that it is given
// is returned as it is.
func Status(err error) error {
	if err == nil || statusOf(err) != nil {
		return err
	}
	kind, code := find(err)
	text, details := err.Error(), Details(err)
	if details.Remedy == "" {
		if details.Remedy = remedy(err); details.Remedy != "" {
			text += ": " + details.Remedy
		}
	}
	if kind.Word != "" && !strings.HasPrefix(text, kind.Word) {
		text = kind.Word + ": " + text
	}
	s := status.New(code, Clip(text))
	info := &errdetails.ErrorInfo{Reason: kind.Name, Domain: domain, Metadata: metadata(details)}
	if len(info.Metadata) == 0 && kindOfStatus(s).Name == kind.Name {
		return s.Err() // the code says it all
	}
	if detailed, err := s.WithDetails(info); err == nil {
		s = detailed
	}
	return s.Err()
}

// remedy is that of the outermost kind in err that has one.
func remedy(err error) (what string) {
	walk(err, func(e error) bool {
		if k := marked(e); k != nil {
			what = k.Remedy
		}
		return what == "" && statusOf(e) == nil
	})
	return what
}

// metadata are the details that are known, by name.
func metadata(d Detail) map[string]string {
	all := map[string]string{}
	for name, value := range named(&d) {
		if *value != "" {
			all[name] = Clip(*value)
		}
	}
	return all
}

// detailOf are the details that a status brings.
func detailOf(s *status.Status) (d Detail) {
	if info := infoOf(s); info != nil {
		for name, to := range named(&d) {
			*to = info.GetMetadata()[name]
		}
	}
	return d
}

// infoOf returns what Status has put into a status, nil when there is nothing.
func infoOf(s *status.Status) *errdetails.ErrorInfo {
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return info
		}
	}
	return nil
}

// statusOf returns the status that e itself is, without what it wraps.
func statusOf(e error) *status.Status {
	if s, ok := e.(interface{ GRPCStatus() *status.Status }); ok {
		return s.GRPCStatus()
	}
	return nil
}

// kindOfStatus is the kind that the details of a status name, else the first that has its code.
func kindOfStatus(s *status.Status) Kind {
	reason := infoOf(s).GetReason()
	for _, k := range kinds {
		if k.Name == reason {
			return k
		}
	}
	for _, k := range kinds {
		if k.Code == s.Code() && k.Word == "" {
			return k
		}
	}
	return Kind{Err: unknown.Err, Name: s.Code().String(), Code: s.Code(), Exit: ExitFailure}
}
