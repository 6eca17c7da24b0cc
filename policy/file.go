package policy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How a file is watched.
const (
	// filePoll is how often a file is looked at without a notification: some file
	// systems send none, and a folder may be replaced.
	filePoll = 30 * time.Second
	// quiet is how long a file has to be left alone before it is read, and atMost how
	// long that may put it off: whoever writes in place writes in parts.
	quiet  = 15 * time.Millisecond
	atMost = 60 * time.Millisecond
)

// File returns the source that reads a policy file: see [Parse]. A change is noticed
// within 100 ms where the operating system tells of it, whether the file is replaced
// (renamed over), written in place, deleted and made again, or reached by a symbolic link
// that is moved, as in a Kubernetes ConfigMap; else within 30 s. The content decides: a file
// that is only touched is not loaded again.
//
// Replace the file, if you can: write another one beside it and rename that. A file that is
// written in place may be read when it is half written. Then the set is refused if it is
// broken or has no rules, and it is read again when the rest is there.
func File(path string) Source { return &file{path: path, watch: fsnotify.NewWatcher} }

type file struct {
	path  string
	watch func() (*fsnotify.Watcher, error)
}

func (f *file) Load(context.Context) (*Set, error) {
	data, err := f.read()
	if err != nil {
		return nil, err
	}
	set, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.path, err)
	}
	return set, nil
}

// read returns the file's content. It reads regular files only, so that it ends.
func (f *file) read() ([]byte, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("policy: %s is not a regular file", f.path)
	}
	r, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return data, nil
}

// content stands for what the file holds, or for why it cannot be read.
func (f *file) content() [sha256.Size]byte {
	data, err := f.read()
	if err != nil {
		return sha256.Sum256([]byte("\x00" + err.Error()))
	}
	return sha256.Sum256(data)
}

func (f *file) Changes(ctx context.Context) <-chan struct{} {
	changes := make(chan struct{}, 1)
	w := &fileWatch{file: f, changes: changes, last: f.content()}
	w.notify, _ = f.watch() // without notifications, polling is left
	w.follow()
	go w.run(ctx)
	return changes
}

// fileWatch tells of changes to a file's content.
type fileWatch struct {
	file    *file
	notify  *fsnotify.Watcher // nil if there are no notifications
	changes chan struct{}
	last    [sha256.Size]byte // the content that was told last
	folders []string          // that are watched
}

func (w *fileWatch) run(ctx context.Context) {
	defer close(w.changes)
	var events chan fsnotify.Event
	var faults chan error
	if w.notify != nil {
		defer w.notify.Close()
		events, faults = w.notify.Events, w.notify.Errors
	}
	ticker := time.NewTicker(filePoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			w.settle(ctx, events)
		case <-faults: // events were lost
		case <-ticker.C:
			w.folders = nil // what is watched may have been replaced: watch it anew
		}
		w.look()
	}
}

// settle waits until the file is left alone for a moment.
func (w *fileWatch) settle(ctx context.Context, events <-chan fsnotify.Event) {
	deadline := time.NewTimer(atMost)
	defer deadline.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-deadline.C:
			return
		case <-time.After(quiet):
			return
		case <-events:
		}
	}
}

// look tells of a change if the content is another than the one that was told last.
func (w *fileWatch) look() {
	w.follow()
	if content := w.file.content(); content != w.last {
		w.last = content
		signal(w.changes)
	}
}

// follow watches the folder that the file is in, and those that links on the way to it
// lead to.
func (w *fileWatch) follow() {
	if w.notify == nil {
		return
	}
	folders := foldersOf(w.file.path)
	if slices.Equal(folders, w.folders) {
		return
	}
	for _, folder := range w.folders {
		if !slices.Contains(folders, folder) {
			_ = w.notify.Remove(folder)
		}
	}
	w.folders = w.folders[:0]
	for _, folder := range folders {
		if err := w.notify.Add(folder); err == nil {
			w.folders = append(w.folders, folder)
		}
	}
}

// maxLinks bounds how many symbolic links are followed.
const maxLinks = 40

// foldersOf returns the folder of a path, and if the path is a link, those of what it leads
// to, link by link.
func foldersOf(path string) (folders []string) {
	for range maxLinks {
		folder := filepath.Dir(path)
		if !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
		if real, err := filepath.EvalSymlinks(folder); err == nil && !slices.Contains(folders, real) {
			folders = append(folders, real)
		}
		target, err := os.Readlink(path)
		if err != nil { // not a link, or not there
			return folders
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(folder, target)
		}
		path = target
	}
	return folders
}
