package fill

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"text/template"
)

// data is what the templates of these tests see.
var data = []Values{
	{"One": "10.1.0.0/16", "Many": []string{"10.1.0.0/16", "fd00::/64"}, "None": []string{}, "Empty": ""},
	{"One": "", "Many": []string{"x"}, "None": []string{}, "Empty": ""},
}

// library is what text/template makes of a template.
func library(text string, values Values) (string, error) {
	t, err := template.New("t").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any(values))
	return out.String(), err
}

// same wants Text to make of a template what text/template makes of it, or both to fail.
func same(t *testing.T, text string) (failed bool) {
	t.Helper()
	for _, values := range data {
		got, err := Text("t", text, values)
		want, wantErr := library(text, values)
		switch {
		case (err == nil) != (wantErr == nil):
			t.Errorf("%s: %v, wanted %v", text, err, wantErr)
		case err == nil && string(got) != want:
			t.Errorf("%s: %q, wanted %q", text, got, want)
		}
		failed = failed || err != nil
	}
	return failed
}

// TestLikeTheLibrary compares templates as people write them, and each kind of node.
func TestLikeTheLibrary(t *testing.T) {
	for _, text := range []string{
		"", "plain", "{{/* a comment */}}x", `{{.One}}`, `{{ .One -}}   x`,
		`"ranges": [{{range $i, $range := .Many}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}]`,
		`{{range .Many}}<{{.}}>{{end}}`, `{{range .None}}x{{else}}none{{end}}`, `{{range $x := .Many}}{{$x}}{{$.One}}{{end}}`,
		`{{range 3}}{{.}}{{end}}`, `{{range $i := 3}}{{$i}}{{end}}`,
		`{{range $i, $x := .Many}}{{if eq $i 1}}{{break}}{{end}}{{$x}}{{end}}`,
		`{{range $i, $x := .Many}}{{if eq $i 0}}{{continue}}{{end}}{{$x}}{{end}}`,
		`{{range .Many}}{{with .}}{{break}}{{end}}{{end}}`,
		`{{if .One}}a{{else if .Many}}b{{else}}c{{end}}`, `{{if .Empty}}a{{else}}b{{end}}`, `{{if not .None}}n{{end}}`,
		`{{with .Many}}{{len .}}{{else}}e{{end}}`, `{{with $x := .One}}{{$x}}{{.}}{{end}}`, `{{with .Empty}}e{{else with .One}}o{{end}}`,
		`{{$a := 1}}{{$a}}{{$a = 2}}{{$a}}`, `{{$a := 1}}{{if true}}{{$a = 2}}{{$a := 3}}{{$a}}{{end}}{{$a}}`,
		`{{$last := ""}}{{range .Many}}{{$last = .}}{{end}}{{$last}}`,
		`{{index .Many 0}}`, `{{index .Many 1}}`, `{{index .Many -1}}`, `{{index .Many}}x`,
		`{{len .Many}}`, `{{len .One}}`, `{{len 3}}`, `{{.Many}}`, `{{.}}`, `{{true}} {{1}} {{"text"}} {{'a'}} {{0x10}}`,
		`{{eq .One "10.1.0.0/16"}}`, `{{eq 1 2 3 1}}`, `{{eq 1 "x"}}`, `{{eq true true}}`, `{{eq .Many .Many}}`, `{{eq 1}}`,
		`{{ne .One ""}}`, `{{lt 1 2}}{{le 2 2}}{{gt 1 2}}{{ge 1 2}}`, `{{lt "a" "b"}}`, `{{lt true false}}`, `{{lt 1 "x"}}`,
		`{{and .One .Empty}}|{{or .Empty .One}}|{{and 1 2}}|{{or 0 0}}`, `{{or .One (index .Many 9)}}`, `{{and .Empty (len 3)}}`,
		`{{print 1 2 "x" .One}}`, `{{printf "%q-%d" .One 3}}`, `{{println "x"}}`, `{{.One | printf "%s %q" "a"}}`, `{{printf 1}}`,
		`{{"x" | print | len}}`, `{{(index .Many 0) | len}}`, `{{.One | len | eq 11}}`,
		`{{define "a"}}[{{.}}]{{end}}{{template "a" .One}}{{template "a"}}`, `{{template "none"}}`,
		`{{block "b" .Many}}{{len .}}{{end}}`, `{{define "r"}}{{template "r"}}{{end}}ok`, `{{define "v"}}{{$}}{{end}}{{template "v" 3}}`,
		`{{.Nothing}}`, `{{if .Nothing}}{{end}}`, `{{.One.More}}`, `{{$.One}}`, `{{$x}}`, `{{nothing}}`, `{{.One "x"}}`, `{{1 | 2}}`,
		`{{range .One}}{{end}}`, `{{range true}}{{end}}`, `{{`, `{{end}}`, `{{if}}{{end}}`, `{{break}}`, `{{not}}`, `{{or}}`, `{{printf}}`,
		`{{range $i, $x := .None}}{{else}}{{$i}}{{end}}`, `{{(.Many)}}`, `{{nil}}`,
	} {
		same(t, text)
	}
}

// TestLikeTheLibraryAtRandom compares templates that are put together at random.
func TestLikeTheLibraryAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	failed, most := 0, 1000
	for range most {
		if same(t, random(r, 3, ".One")) {
			failed++
		}
	}
	if failed > most*9/10 {
		t.Errorf("%d of %d templates cannot be filled in: the others say too little", failed, most)
	}
}

// random is a template with nodes in each other up to a depth, in which dot is a text or a list.
func random(r *rand.Rand, depth int, dot string) string {
	var b strings.Builder
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	value := func() string {
		return pick(dot, "$.One", "$.Many", "$.None", "$.Empty", "$a", "1", "0", `"x"`, "true", "(len $.Many)",
			"(index $.Many 0)")
	}
	pipe := func() string {
		switch r.IntN(5) {
		case 0:
			return fmt.Sprintf("%s %s %s", pick("eq", "ne", "lt", "and", "or", "print", "index"), value(), value())
		case 1:
			return fmt.Sprintf("%s %s", pick("not", "len", "print"), value())
		case 2:
			return fmt.Sprintf("%s | %s", value(), pick("not", "len", "print", `printf "%v"`))
		}
		return value()
	}
	b.WriteString(`{{$a := "a"}}`)
	for range 1 + r.IntN(2) {
		if depth == 0 {
			fmt.Fprintf(&b, "{{%s}} ", pipe())
			continue
		}
		inner, other := random(r, depth-1, "."), random(r, depth-1, dot)
		switch r.IntN(5) {
		case 0:
			fmt.Fprintf(&b, "{{if %s}}%s{{else}}%s{{end}}", pipe(), other, other)
		case 1:
			fmt.Fprintf(&b, "{{range %s %s}}%s%s{{else}}%s{{end}}", pick("$i, $a :=", "$a :=", "$a =", ""),
				pick("$.Many", "$.None", "2", value()), inner, pick("", "", "{{break}}", "{{continue}}"), other)
		case 2:
			fmt.Fprintf(&b, "{{with %s}}%s{{end}}", pipe(), inner)
		case 3:
			fmt.Fprintf(&b, "{{$a = %s}}%s", value(), other)
		default:
			fmt.Fprintf(&b, "{{%s}}", pipe())
		}
	}
	return b.String()
}

// TestBounds shows what ends a template that would make more than anybody wants.
func TestBounds(t *testing.T) {
	for text, want := range map[string]string{
		`{{range 1000000000}}xxxxxxxx{{end}}`:                   "more than 1048576 bytes",
		`{{define "a"}}{{template "a"}}{{end}}{{template "a"}}`: "more than 100 deep",
		`{{.Nothing}}`: "there are Empty, Many, None, One",
	} {
		if out, err := Text("t", text, data[0]); err == nil || !strings.Contains(err.Error(), want) || out != nil {
			t.Errorf("%s: %v, %d bytes", text, err, len(out))
		}
	}
}
