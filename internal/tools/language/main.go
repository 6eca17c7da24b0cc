// Language counts phrases that make comments and pages hard to read: clauses in a noun's place,
// data flow described as speech, pronouns far from their noun, and dated adverbs. It also counts
// "for example", the words in chains (of, which, that, whose), and identifiers describing speech.
// It prints figures for 1,000 words, beside four models' figures. No check fails because of them.
//
//	go -C internal/tools run ./language -dir ../..          # a table of folders
//	go -C internal/tools run ./language -dir ../../lease -hits # and each hit, with its file and line
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("language: ")
	dir := flag.String("dir", ".", "folder whose files are counted")
	hits := flag.Bool("hits", false, "print each hit as file:line: rule: text")
	flag.Parse()
	root, err := filepath.Abs(*dir)
	if err != nil {
		log.Fatal(err)
	}
	found, err := countFolder(root)
	if err != nil {
		log.Fatal(err)
	}
	if *hits {
		for _, h := range found.hits {
			fmt.Printf("%s:%d: %s: %s\n", filepath.Join(*dir, h.file), h.line, h.rule, h.text)
		}
	}
	found.table(os.Stdout)
}

// table writes each folder's figures by kind of text, and their sum. The sum does not include programs' strings.
func (c *counted) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	head := "\twords\t"
	for r := range rules {
		head += rules[r].name + "\t"
	}
	fmt.Fprintln(w, head)
	for _, folder := range slices.Sorted(maps.Keys(c.folders)) {
		row(w, folder, *c.folders[folder])
	}
	fmt.Fprintln(w, head)
	var all figures
	for k := range kinds {
		row(w, kinds[k], c.kinds[k])
		if kind(k) != goStrings {
			all.add(c.kinds[k])
		}
	}
	row(w, "all but strings", all)
	fmt.Fprintf(w, "for 1,000 words\t\t")
	for r := range rules {
		fmt.Fprintf(w, "%.2f\t", 1000*float64(all.hits[r])/float64(max(all.words, 1)))
	}
	fmt.Fprintln(w)
	_ = w.Flush()
	c.chains(out)
}

// chains writes how often each kind of text uses the measured words in 1,000 words, beside the models' figures.
func (c *counted) chains(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	head, models := "\nfor 1,000 words\t", "models\t"
	for _, m := range measured {
		head += m.name + "\t"
		models += m.models + "\t"
	}
	fmt.Fprintln(w, head)
	for k, f := range c.kinds {
		if f.words == 0 {
			continue
		}
		fmt.Fprintf(w, "%s\t", kinds[k])
		for _, n := range f.measured {
			fmt.Fprintf(w, "%.2f\t", 1000*float64(n)/float64(f.words))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, models)
	_ = w.Flush()
	fmt.Fprintf(out, "\n%d of %d identifiers are named by speech\n", c.speech, c.identifiers)
}

// row writes the figures for one folder or one kind of text.
func row(w io.Writer, name string, f figures) {
	fmt.Fprintf(w, "%s\t%d\t", name, f.words)
	for _, n := range f.hits {
		fmt.Fprintf(w, "%d\t", n)
	}
	fmt.Fprintln(w)
}
