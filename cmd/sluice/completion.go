package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/sluice-gate/sluice/cmd/cli"
)

// completionCmd prints a script for a shell to read at its start. The script calls the hidden command completion-words
// at each tab, so it stays right when the program is replaced.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: bash, zsh or fish."`
}

// completionScripts ask this program what may follow: lines of a word, a tab and its purpose. Without any, the shell
// completes names of files.
var completionScripts = map[string]string{
	"bash": `# bash completion of sluice
_sluice() {
  COMPREPLY=($(compgen -W "$(sluice completion-words "${COMP_WORDS[@]:1:COMP_CWORD-1}" | cut -f 1)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o bashdefault -o default -F _sluice sluice
`,
	"zsh": `#compdef sluice
_sluice() {
  local -a all
  local tab=$'\t'
  all=(${(f)"$(sluice completion-words ${words[2,CURRENT-1]})"})
  all=(${all//:/\\:})
  all=(${all/$tab/:})
  _describe sluice all || _files
}
compdef _sluice sluice
`,
	"fish": `# fish completion of sluice
complete -c sluice -a '(sluice completion-words (commandline -opc)[2..])'
`,
}

// Run prints the shell's script.
func (c *completionCmd) Run(s cli.Streams) error {
	_, err := io.WriteString(s.Out, completionScripts[c.Shell])
	return err
}

// completionWordsCmd is what the scripts call.
type completionWordsCmd struct {
	Words []string `arg:"" optional:"" passthrough:"" help:"Words of a command line, without the last."`
}

// Run prints the words that may follow.
func (c *completionWordsCmd) Run(s cli.Streams, ctx *kong.Context) error {
	// It follows the words from the root: a word that names a command goes down to it, and all others, such as flags,
	// are passed over. Flags of the commands on the way apply below, too.
	at, flags := ctx.Model.Node, ctx.Model.Flags
	for _, word := range c.Words {
		if i := slices.IndexFunc(at.Children, func(n *kong.Node) bool { return n.Name == word }); i >= 0 {
			at = at.Children[i]
			flags = append(slices.Clip(flags), at.Flags...)
		}
	}
	var words strings.Builder
	for _, child := range at.Children {
		if !child.Hidden {
			fmt.Fprintf(&words, "%s\t%s\n", child.Name, summaryOf(child.Help))
		}
	}
	for _, p := range at.Positional {
		for _, word := range p.EnumSlice() {
			if word != "" {
				fmt.Fprintln(&words, word)
			}
		}
	}
	for _, f := range flags {
		if !f.Hidden {
			fmt.Fprintf(&words, "--%s\t%s\n", f.Name, summaryOf(f.Help))
		}
	}
	_, err := io.WriteString(s.Out, words.String())
	return err
}

// summaryOf is the first sentence of a help, where a list has a line for each word. A shell shows one line for each
// word.
func summaryOf(help string) string {
	sentence, _, _ := strings.Cut(help, ". ")
	first, _, _ := strings.Cut(sentence, "; ")
	return strings.TrimSuffix(strings.ReplaceAll(first, "\n", " "), ".")
}
