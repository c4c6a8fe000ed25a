package main

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// boolMapper reads booleans as envoyproxy/ratelimit does (1, t, true, 0, f, false and their capitals), and
// also yes and no.
type boolMapper struct{}

// IsBool says that a flag needs no value.
func (boolMapper) IsBool() bool { return true }

// Decode implements kong.Mapper.
func (boolMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		target.SetBool(true)
		return nil
	}
	token := ctx.Scan.Pop()
	if b, ok := token.Value.(bool); ok {
		target.SetBool(b)
		return nil
	}
	b, err := parseBool(fmt.Sprint(token.Value))
	if err != nil {
		return err
	}
	target.SetBool(b)
	return nil
}

func parseBool(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "yes":
		return true, nil
	case "no":
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%q is neither true (1, t, true, yes) nor false (0, f, false, no)", text)
	}
	return b, nil
}
