package rules

import (
	"context"
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/fail"
	"berth/test/golden"
)

// TestErrorsKeepTheirCodes compares every error of a kind that the product makes with testdata/errors.txt: its package,
// the gRPC code that its kind has, and its text. A client acts on the code, so that a change of it is seen in review.
func TestErrorsKeepTheirCodes(t *testing.T) {
	var lines []string
	for _, s := range sources(t) {
		if s.isTest() || !strings.HasPrefix(s.pkg(), "internal/") && !strings.HasPrefix(s.pkg(), "cmd/") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if kind, text := kindAndText(call); kind != "" && s.pkg() != "internal/fail" {
				err, known := kinds[kind]
				if !known {
					t.Errorf("%s:%d: %s is no kind of errors", s.path, s.line(call.Pos()), kind)
				}
				lines = append(lines, fmt.Sprintf("%s %s %s", s.pkg(), fail.KindOf(err).Code, text))
			}
			return true
		})
	}
	slices.Sort(lines)
	golden.File(t, "testdata/errors.txt", strings.Join(lines, "\n")+"\n")
}

// kinds are the kinds of errors by the names that the sources have for them.
var kinds = map[string]error{
	"ErrInvalidArgument": errdefs.ErrInvalidArgument, "ErrNotFound": errdefs.ErrNotFound,
	"ErrAlreadyExists": errdefs.ErrAlreadyExists, "ErrResourceExhausted": errdefs.ErrResourceExhausted,
	"ErrFailedPrecondition": errdefs.ErrFailedPrecondition, "ErrAborted": errdefs.ErrAborted,
	"ErrUnavailable": errdefs.ErrUnavailable, "ErrInternal": errdefs.ErrInternal, "ErrDataLoss": errdefs.ErrDataLoss,
	"ErrNotImplemented": errdefs.ErrNotImplemented, "Canceled": context.Canceled,
	"ErrPermissionDenied":          errdefs.ErrPermissionDenied,
	"ErrRegistryUnavailable":       crierrors.ErrRegistryUnavailable,
	"ErrSignatureValidationFailed": crierrors.ErrSignatureValidationFailed,
	"ErrImageVolumeMountFailed":    crierrors.ErrImageVolumeMountFailed,
}

// kindAndText returns the kind and the format of a call that makes an error of a kind.
func kindAndText(call *ast.CallExpr) (kind, text string) {
	switch name := lastName(call.Fun); {
	case name == "New" && len(call.Args) > 1:
		if s, ok := call.Fun.(*ast.SelectorExpr); ok && lastName(s.X) == "fail" {
			return lastName(call.Args[0]), literal(call.Args[1])
		}
	}
	return "", ""
}

// lastName is the name that an expression such as errdefs.ErrNotFound ends with.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// literal is a string that may be put together from several.
func literal(e ast.Expr) string {
	var text func(ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			if e.Kind == token.STRING {
				s, _ := strconv.Unquote(e.Value)
				return s
			}
		case *ast.BinaryExpr:
			return text(e.X) + text(e.Y)
		case *ast.Ident:
			return "<" + e.Name + ">"
		}
		return "<?>"
	}
	return strconv.Quote(text(e))
}
