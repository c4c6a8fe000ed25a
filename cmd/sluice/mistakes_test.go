package main

import (
	goflag "flag"
	"os"
	"regexp"
	"strings"
	"testing"
)

var rewrite = goflag.Bool("rewrite", false, "write testdata/mistakes.md anew, with what check says now")

// A section of testdata/mistakes.md has files, and a command that is run on them.
var (
	mistakeBlock = regexp.MustCompile("(?s)```(yaml|text)\n(.*?)```\n")
	mistakeFile  = regexp.MustCompile(`^# (rules/\S+)\n`)
)

// testdata/mistakes.md is what check says of at least forty realistic mistakes, one a
// section. Every one of them fails under --strict.
func TestMistakes(t *testing.T) {
	page := read(t, "cmd/sluice/testdata/mistakes.md")
	sections := strings.Split(page, "\n### ")
	if n := len(sections) - 1; n < 40 {
		t.Errorf("%d mistakes", n)
	}
	out := sections[0]
	for _, section := range sections[1:] {
		title, _, _ := strings.Cut(section, "\n")
		t.Run(title, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.Mkdir("rules", 0o755); err != nil {
				t.Fatal(err)
			}
			got := playMistake(t, section)
			if got != section && !*rewrite {
				t.Errorf("now it says:\n%s", got)
			}
			out += "\n### " + got
		})
	}
	if *rewrite {
		if err := os.WriteFile("testdata/mistakes.md", []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// playMistake is a section with what its command says now.
func playMistake(t *testing.T, section string) string {
	t.Helper()
	return mistakeBlock.ReplaceAllStringFunc(section, func(block string) string {
		m := mistakeBlock.FindStringSubmatch(block)
		if m[1] == "yaml" {
			name, text := "rules.yaml", m[2]
			if named := mistakeFile.FindStringSubmatch(text); named != nil {
				name, text = named[1], strings.TrimPrefix(text, named[0])
			}
			writeFile(t, name, text)
			return block
		}
		line, _, _ := strings.Cut(m[2], "\n")
		args := strings.Fields(strings.TrimPrefix(line, "$ sluice "))
		_, _, said := runLine(args...)
		if code, _, _ := runLine(append(args, "--strict")...); code != 1 {
			t.Errorf("with --strict the exit code is %d", code)
		}
		return "```text\n" + line + "\n" + strings.TrimSuffix(said, "\n") + "\n```\n"
	})
}
