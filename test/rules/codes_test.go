package rules

// kindCodes are the gRPC codes of the kinds of errors, by the names that the sources have for the kinds.
var kindCodes = map[string]string{
	"ErrInvalidArgument": "InvalidArgument", "ErrNotFound": "NotFound", "ErrAlreadyExists": "AlreadyExists",
	"ErrResourceExhausted": "ResourceExhausted", "ErrFailedPrecondition": "FailedPrecondition",
	"ErrUnavailable": "Unavailable", "ErrInternal": "Internal", "ErrNotImplemented": "Unimplemented",
	"InvalidArgument": "InvalidArgument", "NotFound": "NotFound", "DataLoss": "DataLoss", "Canceled": "Canceled",
	"FailedPrecondition": "FailedPrecondition", "ResourceExhausted": "ResourceExhausted", "Refused": "Unknown",
}
