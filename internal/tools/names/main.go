// Names counts all packages' public names and the words in their
// documentation. It lists the names that nothing shows to users.
//
//	go -C internal/tools run ./names -dir ../..             # a table of packages
//	go -C internal/tools run ./names -dir ../.. -unshown    # and the names that nothing shows
//	go -C internal/tools run ./names -dir ../.. -list       # and all names
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"text/tabwriter"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("names: ")
	dir := flag.String("dir", ".", "folder of the repository")
	unshown := flag.Bool("unshown", false, "list the names that nothing shows and that are not exempt")
	list := flag.Bool("list", false, "list all names, with how each is shown")
	flag.Parse()
	root, err := filepath.Abs(*dir)
	if err != nil {
		log.Fatal(err)
	}
	all, err := count(root)
	if err != nil {
		log.Fatal(err)
	}
	if err := all.exempt(exemptions); err != nil {
		log.Print(err)
	}
	all.table(os.Stdout)
	for _, n := range all.names {
		switch {
		case *list:
			fmt.Printf("%-12s %-12s %s\n", n.kind, n.shown, n)
		case *unshown && n.shown == nowhere:
			fmt.Printf("%-12s %s\n", n.kind, n)
		}
	}
}

// table writes each package's figures.
func (c *counted) table(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "package\tnames\tnot demanded\tshown by packages only\tshown nowhere\twords\t")
	for _, f := range append(c.packages, c.total()) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t\n", f.path, f.names, f.names-f.demanded, f.inside, f.unshown, f.words)
	}
	_ = w.Flush()
}
