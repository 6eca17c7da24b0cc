package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// measure builds the suite's benchmarks once. It runs them count times,
// each time in a new process, and writes their output to the file.
func (s suite) measure(file, benchtime string, count int) error {
	binary, err := s.build()
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Dir(binary))
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}
	w, err := os.Create(file)
	if err != nil {
		return err
	}
	defer w.Close()
	fmt.Fprintf(w, "date: %s\ngo: %s\n", time.Now().UTC().Format(time.DateOnly), runtime.Version())
	for i := range count {
		fmt.Fprintf(os.Stderr, "%s %s, round %d of %d\n", time.Now().Format(time.TimeOnly), s.name, i+1, count)
		if err := s.round(binary, benchtime, w); err != nil {
			return err
		}
	}
	return w.Close()
}

// build compiles the package's tests into their own folder.
func (s suite) build() (binary string, err error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return "", err
	}
	binary = filepath.Join(dir, "bench.test")
	cmd := exec.Command("go", "test", "-c", "-o", binary, ".")
	cmd.Dir, cmd.Stderr = s.dir, os.Stderr
	return binary, cmd.Run()
}

func (s suite) round(binary, benchtime string, w io.Writer) error {
	cmd := exec.Command(binary, "-test.run=^$", "-test.bench="+s.bench, "-test.benchtime="+benchtime, "-test.timeout=0")
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, w, os.Stderr
	return cmd.Run()
}
