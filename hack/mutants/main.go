// Command mutants changes one thing at a time in the code of pods, images and monitors, and runs the unit tests against
// each change. A mutant that no test notices shows what the tests do not hold.
//
//	go run ./hack/mutants [-update] [-only text] [-list file] [directory]
//	go run ./hack/mutants -where [-list file] [directory]
//	go run ./hack/mutants -choose [-list file] [directory]
//
// The list, testdata/mutants.txt, has a mutant in each line: the function, which is named without its package, the kind
// of the change, which one of this kind in the function, what is changed, and what became of it. So a mutant is found
// again after its function has moved to another package, and a run shows which mutants fare otherwise than before;
// -update writes down what became of them. A line "renamed old new" follows a function to another name. The test that
// has killed a mutant is in its line, and runs first the next time.
//
// The tests run as root and the mutants may do anything, so all happens in namespaces of its own (package isolate), in
// which only the compiler's cache, the list and empty directories can be written.
package main

import (
	"flag"
	"fmt"
	"log"
	"path/filepath"
	"strings"
	"time"

	"berth/hack/product"
	"berth/test/isolate"
)

func main() {
	log.SetFlags(0)
	inside, err := isolate.Enter()
	if err != nil {
		log.Fatal(err)
	}
	if !inside {
		return
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	list := flag.String("list", "hack/mutants/testdata/mutants.txt", "the list of mutants")
	choose := flag.Bool("choose", false, "choose mutants anew, and write the list")
	update := flag.Bool("update", false, "write to the list what becomes of the mutants")
	only := flag.String("only", "", "run those whose line in the list has this text")
	where := flag.Bool("where", false, "run none, and tell where each is")
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	p, err := product.Load(root)
	if err != nil {
		return err
	}
	if *choose {
		return chosen(p).write(*list)
	}
	l, err := readList(*list)
	if err != nil {
		return err
	}
	if *where {
		tellWhere(l, p)
		return nil
	}
	if err := confine(root, *list); err != nil {
		return err
	}
	r := &runner{root: root, program: p, limits: map[string]time.Duration{}}
	save := func() error { return nil }
	if *update {
		save = func() error { return l.write(*list) }
	}
	worse, err := runAll(l, r, *only, save)
	if err != nil {
		return err
	}
	if worse > 0 && !*update {
		return fmt.Errorf("%d mutants were killed before, and are not now", worse)
	}
	return nil
}

// tellWhere prints where each mutant is, marked where its text has changed or it is not found.
func tellWhere(l *list, p *product.Program) {
	for _, m := range l.mutants {
		switch s, note := l.find(p, m); {
		case s == nil:
			fmt.Printf("! %s: %s\n", m.name(), note)
		case s.text() != m.text:
			fmt.Printf("~ %s: %s/%s: %s, and it was %s\n", m.name(), s.pkg.Path, s.file.Name, s.text(), m.text)
		default:
			fmt.Printf("  %s: %s/%s\n", m.name(), s.pkg.Path, s.file.Name)
		}
	}
}

// runAll runs the mutants of a list, puts what becomes of them into it, and counts those that were killed before and
// are not now. It calls save after each.
func runAll(l *list, r *runner, only string, save func() error) (worse int, err error) {
	dead, ran := 0, 0
	for i := range l.mutants {
		m := &l.mutants[i]
		if !strings.Contains(m.String(), only) {
			continue
		}
		where, note := l.find(r.program, *m)
		became, by := missing, ""
		if where != nil {
			if by, err = r.run(*where, m.by); err != nil {
				return worse, fmt.Errorf("%s: %w", m.name(), err)
			}
			if became, note = killed, by; by == "" {
				became, note = survived, where.pkg.Path
			}
		}
		ran++
		if became == killed {
			dead++
		}
		mark := " "
		if m.became == killed && became != killed {
			worse++
			mark = "!"
		}
		fmt.Printf("%s %-8s %s (%s)\n", mark, became, m.name(), note)
		m.became, m.by = became, by
		if err := save(); err != nil {
			return worse, err
		}
	}
	fmt.Printf("%d of %d mutants were killed\n", dead, ran)
	return worse, nil
}
