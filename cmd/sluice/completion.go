package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: bash, zsh or fish."`
}

// Help is what `sluice completion --help` says below its summary.
func (*completionCmd) Help() string {
	return `Examples:

  source <(sluice completion bash)                                   in ~/.bashrc
  sluice completion zsh > "${fpath[1]}/_sluice"
  sluice completion fish > ~/.config/fish/completions/sluice.fish`
}

// Run prints the shell's script. It asks the parser for all commands and flags, so
// that none can be missing.
func (c *completionCmd) Run(s streams, ctx *kong.Context) error {
	commands := completed(ctx.Model.Node, "", nil)
	switch c.Shell {
	case "bash":
		return bashCompletion(s.out, commands)
	case "zsh":
		return zshCompletion(s.out, commands)
	}
	return fishCompletion(s.out, commands)
}

// completable is what may follow a command.
type completable struct {
	path  string // "bench accuracy"; "": sluice itself
	words []completion
	files bool // it takes the name of a file or a directory
}

// completion is a word and its purpose.
type completion struct{ word, about string }

// completed is a command and all below it.
func completed(n *kong.Node, path string, above []*kong.Flag) []completable {
	c := completable{path: path}
	for _, child := range n.Children {
		if !child.Hidden {
			c.words = append(c.words, completion{child.Name, child.Help})
		}
	}
	flags := append(slices.Clip(above), n.Flags...)
	for _, f := range flags {
		if !f.Hidden {
			c.words = append(c.words, completion{"--" + f.Name, f.Help})
		}
	}
	for _, p := range n.Positional {
		c.files = c.files || p.Name == "path"
		for _, word := range p.EnumSlice() {
			c.words = append(c.words, completion{word, ""})
		}
	}
	all := []completable{c}
	for _, child := range n.Children {
		if !child.Hidden {
			all = append(all, completed(child, strings.TrimSpace(path+" "+child.Name), flags)...)
		}
	}
	return all
}

func (c *completable) list() string {
	words := make([]string, len(c.words))
	for i, w := range c.words {
		words[i] = w.word
	}
	return strings.Join(words, " ")
}

// subcommands are the paths that a shell has to recognise, as a pattern of case.
func subcommands(commands []completable) string {
	var paths []string
	for _, c := range commands[1:] {
		paths = append(paths, `"`+c.path+`"`)
	}
	return strings.Join(paths, "|")
}

func bashCompletion(out io.Writer, commands []completable) error {
	fmt.Fprintf(out, `# bash completion of sluice
_sluice() {
  local cur=${COMP_WORDS[COMP_CWORD]} path= words= files= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "${path:+$path }${COMP_WORDS[i]}" in
      %s) path="${path:+$path }${COMP_WORDS[i]}" ;;
    esac
  done
  case "$path" in
`, subcommands(commands))
	for _, c := range commands {
		files := ""
		if c.files {
			files = " files=1"
		}
		fmt.Fprintf(out, "    %q) words=%q%s ;;\n", c.path, c.list(), files)
	}
	_, err := io.WriteString(out, `  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  if [[ $files && $cur != -* ]] || [[ ${COMP_WORDS[COMP_CWORD-1]} == --config ]]; then
    COMPREPLY+=($(compgen -f -- "$cur"))
  fi
}
complete -o bashdefault -F _sluice sluice
`)
	return err
}

func zshCompletion(out io.Writer, commands []completable) error {
	fmt.Fprintf(out, `#compdef sluice
_sluice() {
  local path= i
  local -a words_of
  for ((i = 2; i < CURRENT; i++)); do
    case "${path:+$path }${words[i]}" in
      %s) path="${path:+$path }${words[i]}" ;;
    esac
  done
  case "$path" in
`, subcommands(commands))
	for _, c := range commands {
		fmt.Fprintf(out, "    %q) words_of=(", c.path)
		for _, w := range c.words {
			fmt.Fprintf(out, " %s", quoted(strings.ReplaceAll(w.word, ":", `\:`)+":"+summaryOf(w.about)))
		}
		files := ""
		if c.files {
			files = "; _files"
		}
		fmt.Fprintf(out, ")%s ;;\n", files)
	}
	_, err := io.WriteString(out, "  esac\n  _describe sluice words_of\n}\ncompdef _sluice sluice\n")
	return err
}

func fishCompletion(out io.Writer, commands []completable) error {
	fmt.Fprintln(out, "# fish completion of sluice\ncomplete -c sluice -f")
	for _, c := range commands {
		when := "__fish_use_subcommand"
		if c.path != "" {
			when = "__fish_seen_subcommand_from " + c.path[strings.LastIndexByte(c.path, ' ')+1:]
		}
		for _, w := range c.words {
			kind := "-a " + w.word
			if flag, ok := strings.CutPrefix(w.word, "--"); ok {
				kind = "-l " + flag
			}
			fmt.Fprintf(out, "complete -c sluice -n %s %s -d %s\n", quoted(when), kind, quoted(summaryOf(w.about)))
		}
		if c.files {
			fmt.Fprintf(out, "complete -c sluice -n %s -F\n", quoted(when))
		}
	}
	return nil
}

// quoted is a text as shells take it literally.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// summaryOf is the first sentence of a help, where a list has a line for each word.
func summaryOf(help string) string {
	first, _, _ := strings.Cut(help, ". ")
	first, _, _ = strings.Cut(first, "; ")
	return strings.TrimSuffix(strings.ReplaceAll(first, "\n", " "), ".")
}
