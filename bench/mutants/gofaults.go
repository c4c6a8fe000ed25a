package main

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strconv"

	"github.com/sluice-gate/sluice/bench/plant"
)

// faults are the mutants of one file: texts that an author could have written instead.
func (p *goPackage) faults(f *plant.File) []*mutant {
	w := &goWalker{goPackage: p, File: f}
	for _, fn := range f.Functions() {
		w.fn = fn
		ast.PreorderStack(fn.Body, nil, func(n ast.Node, stack []ast.Node) bool {
			w.stack = stack
			w.visit(n)
			return true
		})
	}
	return w.found
}

// goWalker visits a function's nodes, and notes possible faults of each.
type goWalker struct {
	*goPackage
	*plant.File
	fn    *ast.FuncDecl
	stack []ast.Node // the ancestors of the node that is visited
	found []*mutant
}

// parent is the i-th ancestor, from 0; nil above the body.
func (w *goWalker) parent(i int) ast.Node {
	if i >= len(w.stack) {
		return nil
	}
	return w.stack[len(w.stack)-1-i]
}

func (w *goWalker) replace(op string, from, to token.Pos, text string) {
	e := plant.Edit{File: w.Name, Start: w.At.Offset(from), End: w.At.Offset(to), Text: text}
	w.found = append(w.found, newMutant(w.Text, functionName(w.fn), op, e))
}

func (w *goWalker) swap(op string, n ast.Node, text string) { w.replace(op, n.Pos(), n.End(), text) }

func (w *goWalker) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		w.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT || n.Op == token.SUB && w.info.Types[n].Value == nil {
			w.swap("sign", n, w.Source(n.X))
		}
	case *ast.BasicLit:
		w.literal(n)
	case *ast.Ident:
		if obj := w.info.Uses[n]; obj != nil && obj.Parent() == types.Universe && (n.Name == "true" || n.Name == "false") {
			w.swap("bool", n, map[string]string{"true": "false", "false": "true"}[n.Name])
		}
	case *ast.CallExpr:
		w.call(n)
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && !isLocking(call) {
			w.swap("drop", n, "")
		}
	case *ast.AssignStmt:
		w.assign(n)
	case *ast.IncDecStmt:
		w.swap("drop", n, "")
		w.replace("arithmetic", n.TokPos, n.End(), map[token.Token]string{token.INC: "--", token.DEC: "++"}[n.Tok])
	case *ast.IfStmt:
		w.condition(n.Cond)
	case *ast.CaseClause:
		w.cases(n)
	case *ast.ReturnStmt:
		w.returns(n)
	case *ast.BranchStmt:
		w.branch(n)
	case *ast.CompositeLit:
		w.fields(n)
	}
}

var (
	boundary   = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
	opposite   = map[token.Token]string{token.LSS: ">=", token.LEQ: ">", token.GTR: "<=", token.GEQ: "<", token.EQL: "!=", token.NEQ: "=="}
	arithmetic = map[token.Token]string{
		token.ADD: "-", token.SUB: "+", token.MUL: "/", token.QUO: "*", token.REM: "/", token.SHL: ">>", token.SHR: "<<",
		token.AND: "|", token.OR: "&", token.XOR: "|", token.ADD_ASSIGN: "-=", token.SUB_ASSIGN: "+=", token.MUL_ASSIGN: "/=", token.XOR_ASSIGN: "|=",
	}
)

func (w *goWalker) binary(n *ast.BinaryExpr) {
	opEnd := n.OpPos + token.Pos(len(n.Op.String()))
	switch n.Op {
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		if !isBasic(w.info.TypeOf(n.X), types.IsFloat) {
			w.replace("boundary", n.OpPos, opEnd, boundary[n.Op])
		}
		if !w.inCondition() {
			w.replace("negate", n.OpPos, opEnd, opposite[n.Op])
		}
	case token.EQL, token.NEQ:
		w.replace("negate", n.OpPos, opEnd, opposite[n.Op])
	case token.LAND, token.LOR:
		w.operand(n)
	default:
		if w.info.Types[n].Value == nil && !isBasic(w.info.TypeOf(n), types.IsString) && arithmetic[n.Op] != "" {
			w.replace("arithmetic", n.OpPos, opEnd, arithmetic[n.Op])
		}
	}
}

// inCondition reports whether the node decides an if, a loop or a case, or is an operand: then other faults cover its
// opposite.
func (w *goWalker) inCondition() bool {
	switch p := w.parent(0).(type) {
	case *ast.IfStmt, *ast.ForStmt, *ast.CaseClause:
		return true
	case *ast.BinaryExpr:
		return p.Op == token.LAND || p.Op == token.LOR
	}
	return false
}

// operand drops an operand of && or ||, each of a chain once.
func (w *goWalker) operand(n *ast.BinaryExpr) {
	w.replace("operand", n.X.End(), n.Y.End(), "")
	if inner, ok := n.X.(*ast.BinaryExpr); !ok || inner.Op != n.Op {
		w.replace("operand", n.X.Pos(), n.Y.Pos(), "")
	}
}

func (w *goWalker) literal(n *ast.BasicLit) {
	if n.Kind != token.INT || w.isSize() {
		return
	}
	v, ok := constant.Int64Val(constant.MakeFromLiteral(n.Value, n.Kind, 0))
	if !ok {
		return
	}
	w.swap("number", n, otherNumber(v))
}

// otherNumber is near a small number, and far from a large one.
func otherNumber(v int64) string {
	if v < 10 {
		return strconv.FormatInt(v+1, 10)
	}
	return strconv.FormatInt(2*v, 10)
}

// isSize reports whether the node is a capacity, which changes only the speed, or is part of a type.
func (w *goWalker) isSize() bool {
	for i := 0; ; i++ {
		switch p := w.parent(i).(type) {
		case *ast.CallExpr:
			if id, ok := p.Fun.(*ast.Ident); ok && id.Name == "make" {
				return true
			}
		case *ast.ArrayType:
			return true
		case *ast.BinaryExpr, *ast.ParenExpr:
		default:
			return false
		}
	}
}

func (w *goWalker) call(n *ast.CallExpr) {
	if id, ok := n.Fun.(*ast.Ident); ok {
		if _, builtin := w.info.Uses[id].(*types.Builtin); builtin {
			if id.Name == "min" || id.Name == "max" {
				w.dropArgument(n)
			}
			return
		}
	}
	for i := range len(n.Args) - 1 {
		a, b := n.Args[i], n.Args[i+1]
		if n.Ellipsis.IsValid() && i == len(n.Args)-2 || w.info.Types[a].Value != nil && w.info.Types[b].Value != nil {
			continue
		}
		ta, tb := w.info.TypeOf(a), w.info.TypeOf(b)
		if ta != nil && tb != nil && types.Identical(ta, tb) && w.Source(a) != w.Source(b) && !types.IsInterface(ta) {
			w.replace("arguments", a.Pos(), b.End(), w.Source(b)+", "+w.Source(a))
		}
	}
}

// dropArgument drops one argument of min or max.
func (w *goWalker) dropArgument(n *ast.CallExpr) {
	for i := range n.Args {
		if len(n.Args) == 2 {
			w.swap("min-max", n, "("+w.Source(n.Args[1-i])+")")
			continue
		}
		w.dropFrom("min-max", n.Args, i)
	}
}

// dropFrom drops one of several expressions with commas between.
func (w *goWalker) dropFrom(op string, list []ast.Expr, i int) {
	if i+1 < len(list) {
		w.replace(op, list[i].Pos(), list[i+1].Pos(), "")
		return
	}
	w.replace(op, list[i-1].End(), list[i].End(), "")
}

func (w *goWalker) assign(n *ast.AssignStmt) {
	if n.Tok == token.DEFINE {
		return
	}
	if len(n.Lhs) > 1 {
		for _, l := range n.Lhs {
			if id, ok := l.(*ast.Ident); !ok || id.Name != "_" {
				w.swap("drop", l, "_")
			}
		}
		return
	}
	if other := arithmetic[n.Tok]; other != "" && !isBasic(w.info.TypeOf(n.Lhs[0]), types.IsString) {
		w.replace("arithmetic", n.TokPos, n.TokPos+token.Pos(len(n.Tok.String())), other)
	}
	if id, ok := n.Lhs[0].(*ast.Ident); ok && id.Name == "_" {
		return
	}
	if w.isComm(n) { // a case needs an operation to wait for
		w.swap("drop", n.Lhs[0], "_")
		return
	}
	w.swap("drop", n, "")
}

// isComm reports whether a statement is the operation of a case of a select.
func (w *goWalker) isComm(n ast.Stmt) bool {
	clause, ok := w.parent(0).(*ast.CommClause)
	return ok && clause.Comm == n
}

// condition makes the condition of an if or a case always false, or always true.
func (w *goWalker) condition(cond ast.Expr) {
	if b, ok := cond.(*ast.BinaryExpr); ok {
		if b.Op == token.EQL || b.Op == token.NEQ { // negated, it is wrong in both ways
			return
		}
		if b.Op != token.LAND && b.Op != token.LOR { // there, a dropped operand does the same
			w.swap("always", cond, "true || ("+w.Source(cond)+")")
		}
	}
	w.swap("never", cond, "false && ("+w.Source(cond)+")")
	if _, ok := cond.(*ast.UnaryExpr); !ok {
		if _, ok := cond.(*ast.BinaryExpr); !ok {
			w.swap("negate", cond, "!("+w.Source(cond)+")")
		}
	}
}

// cases drops a value of a case, or a condition.
func (w *goWalker) cases(n *ast.CaseClause) {
	sw, ok := w.parent(1).(*ast.SwitchStmt)
	if !ok {
		return
	}
	if sw.Tag == nil {
		for _, e := range n.List {
			w.swap("never", e, "false && ("+w.Source(e)+")")
		}
		return
	}
	for i := range n.List {
		if len(n.List) > 1 {
			w.dropFrom("case", n.List, i)
		}
	}
}

func (w *goWalker) returns(n *ast.ReturnStmt) {
	if len(n.Results) == 0 {
		w.swap("drop", n, "")
	}
	for _, r := range n.Results {
		t := w.info.TypeOf(r)
		if t == nil || w.info.Types[r].Value != nil || w.info.Types[r].IsNil() {
			continue
		}
		_, isBinary := r.(*ast.BinaryExpr)
		_, isUnary := r.(*ast.UnaryExpr)
		switch {
		case isBasic(t, types.IsBoolean) && !isBinary && !isUnary:
			w.swap("return", r, "!("+w.Source(r)+")")
		case isBasic(t, types.IsString):
			w.swap("return", r, `""`)
		case t.String() == "error":
			w.swap("return", r, "nil")
		}
	}
}

func (w *goWalker) branch(n *ast.BranchStmt) {
	if n.Tok == token.FALLTHROUGH {
		w.swap("drop", n, "")
		return
	}
	if n.Label != nil {
		return
	}
	for i := 0; ; i++ {
		switch w.parent(i).(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			w.swap("branch", n, map[token.Token]string{token.CONTINUE: "break", token.BREAK: "continue"}[n.Tok])
			return
		case *ast.SwitchStmt, *ast.SelectStmt, *ast.TypeSwitchStmt, *ast.FuncLit, nil:
			return
		}
	}
}

// fields drops a field of a struct literal, so that it is zero.
func (w *goWalker) fields(n *ast.CompositeLit) {
	t := w.info.TypeOf(n)
	if t == nil {
		return
	}
	if _, ok := t.Underlying().(*types.Struct); !ok {
		return
	}
	for i, e := range n.Elts {
		if _, ok := e.(*ast.KeyValueExpr); !ok {
			return
		}
		if len(n.Elts) == 1 {
			w.swap("field", e, "")
			continue
		}
		w.dropFrom("field", n.Elts, i)
	}
}

// isLocking reports whether a call locks, unlocks, or cleans up: without it, the only effect is a wait without end,
// or a longer one.
func isLocking(n *ast.CallExpr) bool {
	name := ""
	switch f := n.Fun.(type) {
	case *ast.SelectorExpr:
		name = f.Sel.Name
	case *ast.Ident:
		name = f.Name
	}
	switch name {
	case "Lock", "Unlock", "RLock", "RUnlock", "cancel", "Wait", "panic":
		return true
	}
	return false
}

func isBasic(t types.Type, info types.BasicInfo) bool {
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&info != 0
}
