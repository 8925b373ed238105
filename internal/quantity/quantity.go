// Package quantity reads quantities as Kubernetes writes them in annotations: 10M, 1.5Gi, 1e6.
package quantity

import (
	"errors"
	"math/big"
	"strings"
)

// The reasons why a text is refused.
var (
	errForm  = errors.New("not a quantity such as 10M, 1.5Gi or 1e6")
	errRange = errors.New("too large")
)

// suffixes of a quantity, with what each multiplies by.
var suffixes = map[string]*big.Rat{
	"n": big.NewRat(1, 1e9), "u": big.NewRat(1, 1e6), "m": big.NewRat(1, 1e3), "": big.NewRat(1, 1),
	"k": big.NewRat(1e3, 1), "M": big.NewRat(1e6, 1), "G": big.NewRat(1e9, 1),
	"T": big.NewRat(1e12, 1), "P": big.NewRat(1e15, 1), "E": big.NewRat(1e18, 1),
	"Ki": big.NewRat(1<<10, 1), "Mi": big.NewRat(1<<20, 1), "Gi": big.NewRat(1<<30, 1),
	"Ti": big.NewRat(1<<40, 1), "Pi": big.NewRat(1<<50, 1), "Ei": big.NewRat(1<<60, 1),
}

// Parse reads a quantity and rounds it up to a whole number. Its form is that of resource.Quantity of
// k8s.io/apimachinery, without a sign. The text may come from anybody: it costs no more than its length.
func Parse(s string) (uint64, error) {
	end := strings.LastIndexAny(s, "0123456789.") + 1
	scale, ok := suffixes[s[end:]]
	if !ok || end == 0 || len(s) > 64 || strings.Trim(s[:end], "0123456789.eE+-") != "" {
		return 0, errForm
	}
	if i := strings.IndexAny(s[:end], "eE"); i >= 0 && end-i > 4 {
		return 0, errForm // an exponent of more digits is out of any range, and takes long to find out
	}
	q, ok := new(big.Rat).SetString(s[:end])
	if !ok || q.Sign() < 0 {
		return 0, errForm
	}
	q.Mul(q, scale)
	n, rest := new(big.Int).QuoRem(q.Num(), q.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	if !n.IsUint64() {
		return 0, errRange
	}
	return n.Uint64(), nil
}
