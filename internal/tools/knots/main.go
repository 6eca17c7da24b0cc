// Knots lists each package's largest set of files that use each other in a circle.
//
//	go -C internal/tools run ./knots -dir ../..                  # a table of packages
//	go -C internal/tools run ./knots -dir ../.. -uses fair       # and the uses that tie the files of a package
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("knots: ")
	dir := flag.String("dir", ".", "folder of the repository")
	uses := flag.String("uses", "", "list the uses that tie the files of this package, such as fair; the root package is .")
	flag.Parse()
	root, err := filepath.Abs(*dir)
	if err != nil {
		log.Fatal(err)
	}
	knots, err := find(root)
	if err != nil {
		log.Fatal(err)
	}
	table(os.Stdout, knots)
	for _, k := range knots {
		if k.path == *uses {
			k.list(os.Stdout)
		}
	}
}

// table writes each knot's files.
func table(out io.Writer, knots []knot) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "package\tin a circle\tof\tfiles")
	for _, k := range knots {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", k.path, len(k.files), k.all, strings.Join(k.files, " "))
	}
	_ = w.Flush()
}

// list writes the uses between a knot's files, a line for each pair.
func (k knot) list(out io.Writer) {
	pair := use{}
	for _, u := range k.uses {
		if u.from != pair.from || u.to != pair.to {
			fmt.Fprintf(out, "\n%s -> %s:", u.from, u.to)
			pair = u
		}
		fmt.Fprint(out, " ", u.id)
	}
	fmt.Fprintln(out)
}
