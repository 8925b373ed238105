// Package document judges what images consist of beside their layers: indexes, manifests and configs, which strangers
// have written. It refuses what two readers could understand differently, and what asks for more than the limits allow.
package document
