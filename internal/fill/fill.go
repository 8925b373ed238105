// Package fill fills in templates as text/template has them, with texts and lists of texts.
//
// The parser is the library's, text/template/parse. What it has parsed is not worked on by the library: that finds
// methods by the names in a template, so the linker would keep every method of every type that the daemon knows, which
// is 4 MB of program and 2.7 MiB of the daemon's memory (docs/adr/0077). Values without methods need none of that.
//
// Start at Text; fill.go walks the nodes of a template, value.go has the values and the functions.
package fill

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"
)

// Values are what a template may name: a string or a []string each.
type Values map[string]any

const (
	// maxText bounds the text that a template makes, in bytes; more is an error.
	maxText = 1 << 20
	// maxDepth bounds how deep templates may call each other.
	maxDepth = 100
)

// Text fills in a template. An error names the template and what in it is wrong; there is no text then. A name that is
// not in values is an error, also below an if.
//
// It is what text/template makes of it, but for the functions call, html, js, slice and urlquery, which are not there.
func Text(name, text string, values Values) ([]byte, error) {
	trees, err := parse.Parse(name, text, "", "", names)
	if err != nil {
		return nil, err
	}
	w := &walker{trees: trees, name: name}
	if err := w.call(trees[name], values, 0); err != nil {
		return nil, fmt.Errorf("template %s: %w", name, err)
	}
	return w.out.Bytes(), nil
}

// walker walks the nodes of a template and writes what they make.
type walker struct {
	trees map[string]*parse.Tree
	name  string
	depth int
	vars  []variable // the innermost last
	out   bytes.Buffer
}

type variable struct {
	name  string
	value any
}

// Why the rest of a list of nodes is passed over.
var (
	errBreak    = errors.New("break outside of a range")
	errContinue = errors.New("continue outside of a range")
)

// call fills in one of the templates, which sees none of the variables of the one that calls it.
func (w *walker) call(tree *parse.Tree, dot any, depth int) error {
	if tree == nil || tree.Root == nil {
		return nil // text of nothing
	}
	if depth > maxDepth {
		return fmt.Errorf("templates call each other more than %d deep", maxDepth)
	}
	vars, was := w.vars, w.depth
	w.vars, w.depth = []variable{{"$", dot}}, depth
	err := w.list(dot, tree.Root)
	w.vars, w.depth = vars, was
	return err
}

func (w *walker) list(dot any, l *parse.ListNode) error {
	if l == nil {
		return nil
	}
	for _, n := range l.Nodes {
		if err := w.node(dot, n); err != nil {
			return err
		}
		if w.out.Len() > maxText {
			return fmt.Errorf("it makes more than %d bytes", maxText)
		}
	}
	return nil
}

func (w *walker) node(dot any, n parse.Node) error {
	switch n := n.(type) {
	case *parse.TextNode:
		w.out.Write(n.Text)
	case *parse.CommentNode:
	case *parse.ActionNode:
		v, err := w.pipe(dot, n.Pipe)
		if err != nil || len(n.Pipe.Decl) > 0 {
			return err
		}
		if v == nil { // the dot of a template that was given none
			v = "<no value>"
		}
		_, err = fmt.Fprint(&w.out, v)
		return err
	case *parse.IfNode:
		return w.choose(dot, &n.BranchNode, false)
	case *parse.WithNode:
		return w.choose(dot, &n.BranchNode, true)
	case *parse.RangeNode:
		return w.each(dot, n)
	case *parse.TemplateNode:
		return w.named(dot, n)
	case *parse.BreakNode:
		return errBreak
	case *parse.ContinueNode:
		return errContinue
	default:
		return fmt.Errorf("%s: not known", n)
	}
	return nil
}

// choose is an if or a with, which makes the value the dot.
func (w *walker) choose(dot any, n *parse.BranchNode, with bool) error {
	defer w.leave(len(w.vars))
	v, err := w.pipe(dot, n.Pipe)
	if err != nil {
		return err
	}
	if !truth(v) {
		return w.list(dot, n.ElseList)
	}
	if with {
		dot = v
	}
	return w.list(dot, n.List)
}

// each is a range over a list or a number.
func (w *walker) each(dot any, n *parse.RangeNode) error {
	before := len(w.vars)
	defer w.leave(before)
	v, err := w.pipe(dot, n.Pipe)
	if err != nil {
		return err
	}
	length, at, err := elements(v, len(n.Pipe.Decl))
	if err != nil {
		return fmt.Errorf("%s: %w", n.Pipe, err)
	}
	if length == 0 {
		return w.list(dot, n.ElseList)
	}
	for i := range length {
		w.leave(before)
		if values := []any{i, at(i)}; len(n.Pipe.Decl) == 2 {
			w.declare(n.Pipe, values)
		} else {
			w.declare(n.Pipe, values[1:])
		}
		err := w.list(at(i), n.List)
		if errors.Is(err, errBreak) {
			break
		}
		if err != nil && !errors.Is(err, errContinue) {
			return err
		}
	}
	return nil
}

// declare gives the variables of a pipeline their values.
func (w *walker) declare(p *parse.PipeNode, values []any) {
	for i, d := range p.Decl {
		if p.IsAssign {
			w.assign(d.Ident[0], values[i])
		} else {
			w.vars = append(w.vars, variable{d.Ident[0], values[i]})
		}
	}
}

func (w *walker) named(dot any, n *parse.TemplateNode) error {
	tree := w.trees[n.Name]
	if tree == nil {
		return fmt.Errorf("%s: there is no template of that name", n)
	}
	var v any
	if n.Pipe != nil {
		var err error
		if v, err = w.pipe(dot, n.Pipe); err != nil {
			return err
		}
	}
	return w.call(tree, v, w.depth+1)
}

// pipe is the value of a pipeline, which its variables are given.
func (w *walker) pipe(dot any, p *parse.PipeNode) (any, error) {
	v, err := w.operands(dot, p)
	if err == nil {
		w.declare(p, []any{v, v})
	}
	return v, err
}

// operands is the value of a pipeline: each command has that of the one before as its last operand.
func (w *walker) operands(dot any, p *parse.PipeNode) (v any, err error) {
	for i, c := range p.Cmds {
		var last []any
		if i > 0 {
			last = []any{v}
		}
		if v, err = w.command(dot, c, last); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (w *walker) command(dot any, c *parse.CommandNode, last []any) (any, error) {
	if f, ok := c.Args[0].(*parse.IdentifierNode); ok {
		return w.function(dot, f.Ident, c.Args[1:], last)
	}
	if len(c.Args) > 1 || len(last) > 0 {
		return nil, fmt.Errorf("%s: only a function has operands", c)
	}
	return w.operand(dot, c.Args[0])
}

// function has its operands be worked out first, but for those of and and or, which end at the first that decides.
func (w *walker) function(dot any, name string, args []parse.Node, last []any) (v any, err error) {
	var operands []any
	for _, a := range args {
		if v, err = w.operand(dot, a); err != nil {
			return nil, err
		}
		if decides(name, v) {
			return v, nil
		}
		operands = append(operands, v)
	}
	v, err = functions[name](append(operands, last...))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

func (w *walker) operand(dot any, n parse.Node) (any, error) {
	switch n := n.(type) {
	case *parse.DotNode:
		return dot, nil
	case *parse.FieldNode:
		return fields(dot, n.Ident)
	case *parse.VariableNode:
		v, err := w.variable(n.Ident[0])
		if err != nil {
			return nil, err
		}
		return fields(v, n.Ident[1:])
	case *parse.ChainNode:
		v, err := w.operand(dot, n.Node)
		if err != nil {
			return nil, err
		}
		return fields(v, n.Field)
	case *parse.PipeNode:
		return w.pipe(dot, n)
	case *parse.IdentifierNode:
		return w.function(dot, n.Ident, nil, nil)
	case *parse.StringNode:
		return n.Text, nil
	case *parse.BoolNode:
		return n.True, nil
	case *parse.NumberNode:
		if n.IsInt {
			return int(n.Int64), nil
		}
	}
	return nil, fmt.Errorf("%s: a text, a whole number, true or false is wanted", n)
}

func (w *walker) variable(name string) (any, error) {
	for _, v := range slices.Backward(w.vars) {
		if v.name == name {
			return v.value, nil
		}
	}
	return nil, fmt.Errorf("%s: not declared", name)
}

func (w *walker) assign(name string, value any) {
	for i := range slices.Backward(w.vars) {
		if w.vars[i].name == name {
			w.vars[i].value = value
			return
		}
	}
}

// leave forgets the variables of a block.
func (w *walker) leave(before int) { w.vars = w.vars[:before] }

// fields are the field of a value, the field of that, and so on.
func fields(v any, names []string) (any, error) {
	for _, name := range names {
		all, ok := v.(Values)
		if !ok {
			return nil, fmt.Errorf("can't evaluate field %s: %v has no fields", name, v)
		}
		if v, ok = all[name]; !ok {
			return nil, fmt.Errorf("can't evaluate field %s: there are %s", name,
				strings.Join(slices.Sorted(maps.Keys(all)), ", "))
		}
	}
	return v, nil
}
