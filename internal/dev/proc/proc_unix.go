//go:build unix

package proc

import (
	"os"
	"os/exec"
	"syscall"
)

// Suspend stops a process until Resume.
func Suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// Resume continues a suspended process.
func Resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// RunAs makes a command run as another user. Only root may.
func RunAs(c *exec.Cmd, uid, gid int) error {
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return nil
}
