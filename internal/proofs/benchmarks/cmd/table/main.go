// Table measures this library and its peers, and prints the results as Markdown. Run it in proofs/benchmarks:
//
//	go run ./cmd/table                   measure everything, five rounds, within the hour
//	go run ./cmd/table -suite peers      only the comparison with peers
//	go run ./cmd/table -suite redis      limiters in Redis, on a redis-server that it starts
//	go run ./cmd/table -suite grpc       interceptors of gRPC servers
//	go run ./cmd/table -count 0          measure nothing; print and draw the contents of the files
//
// It also draws docs/scale.svg from the output of the suite scale.
//
// A round runs each benchmark once, so other load on the machine
// affects all alike. The raw output is kept in files for benchstat.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// suite is a set of benchmarks whose results are in one file.
type suite struct {
	name  string
	dir   string // the package's folder, relative to proofs/benchmarks
	bench string // the value of -bench
	print func(results) string
	draw  func(results) string // draws a picture; may be nil
}

var suites = []suite{
	{"peers", ".", "Peers|NewKey|Memory", peersReport, nil},
	{"own", "../../..", ".", ownReport, nil},
	{"scale", ".", "Scale", scaleReport, drawScale},
	{"redis", ".", "Redis", redisReport, nil},
	{"grpc", ".", "GRPC", grpcReport, nil},
}

func main() {
	count := flag.Int("count", 5, "rounds to measure; 0 to print only")
	benchtime := flag.String("benchtime", "1s", "how long to measure each benchmark in each round")
	names := flag.String("suite", "peers,own,scale", "suites to measure and print")
	out := flag.String("out", "results", "folder of the raw output")
	pictures := flag.String("pictures", "../../../docs", "folder of the picture")
	flag.Parse()
	if err := run(strings.Split(*names, ","), *out, *pictures, *benchtime, *count); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(names []string, out, pictures, benchtime string, count int) error {
	for _, name := range names {
		s, err := find(name)
		if err != nil {
			return err
		}
		if count > 0 {
			if err := s.measure(s.file(out), benchtime, count); err != nil {
				return fmt.Errorf("measuring %s: %w", s.name, err)
			}
		}
		if err := s.report(out, pictures); err != nil {
			return err
		}
	}
	return nil
}

// file returns the path of the suite's raw output.
func (s suite) file(out string) string { return filepath.Join(out, s.name+".txt") }

// report prints and draws the results in the suite's file.
func (s suite) report(out, pictures string) error {
	r, err := read(s.file(out))
	if err != nil {
		return err
	}
	fmt.Println(s.print(r))
	if s.draw == nil {
		return nil
	}
	return os.WriteFile(filepath.Join(pictures, s.name+".svg"), []byte(s.draw(r)), 0o666)
}

func find(name string) (suite, error) {
	for _, s := range suites {
		if s.name == name {
			return s, nil
		}
	}
	return suite{}, fmt.Errorf("no suite is called %q, only peers, own, scale and redis", name)
}
