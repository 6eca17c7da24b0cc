// Consumer checks that other modules can use these modules. It packs each one as a module proxy does, and fetches it by
// name into an empty module elsewhere. There it builds the repository's packages and examples. Run it by scripts/consumer.
//
// It packs the work tree, including files not yet in git, at the version at which the modules require
// each other. A replace in a go.mod file works only in this repository, so it cannot hide an error.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("consumer: ")
	root := flag.String("dir", ".", "folder of the repository")
	keep := flag.Bool("keep", false, "keep the folder with the proxy and the modules that use it, and name it")
	flag.Parse()
	if err := run(*root, *keep, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(root string, keep bool, out io.Writer) error {
	dir, err := folder()
	if err != nil {
		return err
	}
	if keep {
		fmt.Fprintln(out, "folder:", dir)
	} else {
		defer remove(dir)
	}
	p, err := pack(root, dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d modules packed at %s\n", len(p.modules), p.version)
	return p.use(out)
}

// folder makes a folder to work in. If possible, it always uses the same
// one, because the go command's cache distinguishes packages by folder.
func folder() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("consumer-%d", os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", "consumer")
}
