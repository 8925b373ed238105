// Command measure prints how this code base is built, in numbers: the sizes of functions and types, chains of
// selectors, the arrows between files, and what each package needs and offers. Two runs, before and after a change,
// show what it has done.
//
//	go run ./hack/measure [directory]
//
// Only the product counts: packages below internal/ and cmd/, without tests and generated files.
package main

import (
	"cmp"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"slices"

	"berth/hack/product"
)

func main() {
	log.SetFlags(0)
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	p, err := product.Load(root)
	if err != nil {
		log.Fatal(err)
	}
	report(os.Stdout, p)
}

// report prints every table.
func report(w io.Writer, p *product.Program) {
	functions(w, p)
	typesTable(w, p)
	chains(w, p)
	lines(w, p)
	arrows(w, p)
	packages(w, p)
}

// ranked are the keys of a map, those with the largest values first, and only those of at least least.
func ranked(of map[string]int, least int) []string {
	all := slices.DeleteFunc(slices.Collect(maps.Keys(of)), func(k string) bool { return of[k] < least })
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(of[b]-of[a], cmp.Compare(a, b)) })
	return all
}

// table prints the head of a table, and a row for each key.
func table(w io.Writer, title string, of map[string]int, least int) {
	fmt.Fprintf(w, "\n%s\n", title)
	for _, k := range ranked(of, least) {
		fmt.Fprintf(w, "%7d  %s\n", of[k], k)
	}
}
