//go:build !unix

package proc

import (
	"errors"
	"os"
	"os/exec"
)

// Suspend stops a process until Resume.
func Suspend(*os.Process) error { return errors.ErrUnsupported }

// Resume continues a suspended process.
func Resume(*os.Process) error { return errors.ErrUnsupported }

// RunAs makes a command run as another user. Only root may.
func RunAs(*exec.Cmd, int, int) error { return errors.ErrUnsupported }
