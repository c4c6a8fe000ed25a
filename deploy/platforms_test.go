package deploy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The binary is built for the machines that people work on, too: files that are compiled for Windows or macOS use
// nothing of the system that only others have. `make platforms` compiles all of it, which takes minutes.
func TestOtherSystems(t *testing.T) {
	// Names of packages syscall and unix that each system has, of those that are used.
	signals := "syscall.SIGHUP syscall.SIGINT syscall.SIGPIPE syscall.SIGTERM syscall.SIGKILL syscall.Conn syscall.RawConn "
	for system, has := range map[string]string{
		"windows": signals,
		"darwin": signals + "syscall.SIGSTOP syscall.SIGCONT unix.Mmap unix.Munmap unix.PROT_READ unix.PROT_WRITE " +
			"unix.MAP_ANON unix.MAP_PRIVATE",
	} {
		portable := strings.Fields(has)
		cmd := exec.Command("go", "list", "-deps", "-f", `{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{end}}{{end}}{{with .Error}}ERROR {{.}}
{{end}}`, "./cmd/sluice")
		cmd.Dir = ".."
		cmd.Env = append(cmd.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", system, err)
		}
		files := 0
		for path := range strings.FieldsSeq(string(out)) {
			files++
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				pkg, ok := s.X.(*ast.Ident)
				if !ok || pkg.Name != "syscall" && pkg.Name != "unix" {
					return true
				}
				if name := pkg.Name + "." + s.Sel.Name; !slices.Contains(portable, name) {
					t.Errorf("%s, which is compiled for %s, uses %s", path, system, name)
				}
				return true
			})
		}
		if files < 200 {
			t.Errorf("%s: %d files of ours:\n%.2000s", system, files, out)
		}
	}
}
