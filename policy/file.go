package policy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weir-go/ratelimit/internal/wait"
	"github.com/weir-go/ratelimit/policy/internal/mark"
	"github.com/weir-go/ratelimit/policy/internal/poll"
)

// How a file is watched.
const (
	// filePoll is the time between two looks at a file without a notification: some file
	// systems send none, and a folder far up may be replaced.
	filePoll = 30 * time.Second
	// quiet is the time from a notification to the reading of the file. One change sends several.
	quiet = 15 * time.Millisecond
	// still is the time without a change after which a file is read: a program that writes
	// in place writes in parts, and a part may be a valid file with fewer rules.
	still = 500 * time.Millisecond
	// atMost bounds the time by which writing delays the reading.
	atMost = 10 * time.Second
)

// File returns a source that reads a policy file. It sees a change within 100 ms, or within 30 s where the operating system
// reports no changes. The file may be replaced, or reached by links that move, as in a Kubernetes ConfigMap. A file that is
// written in place is read after half a second without a change, and so possibly half written.
func File(path string) Source { return &file{path: path, watch: fsnotify.NewWatcher} }

type file struct {
	path  string
	watch func() (*fsnotify.Watcher, error)

	mu       sync.Mutex
	watchers int  // that run
	known    hash // the content that a watcher has last found still
}

type hash = [sha256.Size]byte

// Load reads the file. While it is watched, a content that no watcher has found still is being
// written, maybe: then Load waits until it stays the same for a moment.
func (f *file) Load(ctx context.Context) (*Set, error) {
	data, err := f.read()
	for begin := time.Now(); err == nil && f.watched() && time.Since(begin) < atMost; {
		now := hashOf(data, nil)
		if f.isKnown(now) {
			break
		}
		if wait.Sleep(ctx, still) != nil {
			return nil, ctx.Err()
		}
		if data, err = f.read(); hashOf(data, err) == now {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	set, err := Parse(data)
	if err == nil {
		return set, nil
	}
	err = fmt.Errorf("%s: %w", f.path, err)
	if on, known := switchIn(data); known {
		err = &mark.Switched{On: on, Err: err}
	}
	return nil, err
}

// Validated marks the sets that Load returns as validated.
func (*file) Validated() (m mark.Validated) { return m }

func (f *file) watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watchers > 0
}

func (f *file) isKnown(h hash) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return h == f.known
}

// found records a content that is still, and the watchers that have begun or ended.
func (f *file) found(h hash, watchers int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = h
	f.watchers += watchers
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
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return data, nil
}

// hashOf returns a hash of the file's content, or of the reason that it cannot be read.
func hashOf(data []byte, err error) hash {
	if err != nil {
		return sha256.Sum256([]byte("\x00" + err.Error()))
	}
	return sha256.Sum256(data)
}

func (f *file) Changes(ctx context.Context) <-chan struct{} {
	changes := make(chan struct{}, 1)
	w := &fileWatch{file: f, changes: changes, folders: map[string]os.FileInfo{}}
	w.notify, _ = f.watch() // without notifications, polling is left
	w.follow()
	w.last = hashOf(f.read())
	f.found(w.last, 1)
	go w.run(ctx)
	return changes
}

// fileWatch reports changes of a file's content.
type fileWatch struct {
	file    *file
	notify  *fsnotify.Watcher // nil if there are no notifications
	changes chan struct{}
	last    hash                   // the content that was reported last
	folders map[string]os.FileInfo // that are watched
	entries []string               // the names in these folders that are on the way to the file
}

func (w *fileWatch) run(ctx context.Context) {
	defer close(w.changes)
	defer func() { w.file.found(w.last, -1) }()
	var events chan fsnotify.Event
	var faults chan error
	if w.notify != nil {
		defer w.notify.Close()
		events, faults = w.notify.Events, w.notify.Errors
	}
	ticker := time.NewTicker(filePoll)
	defer ticker.Stop()
	due := time.NewTimer(atMost) // when to read the file
	due.Stop()
	defer due.Stop()
	var since time.Time // when the reading was put off first; zero if none is due
	put := func(off time.Duration) {
		if since.IsZero() {
			since = time.Now()
		}
		due.Reset(min(off, max(0, atMost-time.Since(since))))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			switch {
			case !w.concerns(e.Name):
			case e.Has(fsnotify.Write):
				put(still)
			case e.Op != fsnotify.Chmod || since.IsZero():
				put(quiet)
			}
		case <-faults: // events were lost
			put(still)
		case <-ticker.C:
			w.follow()
			switch {
			case !since.IsZero():
			case hashOf(w.file.read()) == w.last:
				poll.Signal(w.changes) // it is loaded again, so that it is known to be the newest
			default:
				put(still)
			}
		case <-due.C:
			since = time.Time{}
			w.look()
		}
	}
}

// concerns reports whether an event is about an entry on the way to the file, or about a folder that
// is watched itself.
func (w *fileWatch) concerns(name string) bool {
	_, folder := w.folders[name]
	return folder || slices.Contains(w.entries, name)
}

// look reports a change if the content differs from the last one reported.
func (w *fileWatch) look() {
	w.follow()
	if now := hashOf(w.file.read()); now != w.last {
		w.last = now
		w.file.found(now, 0)
		poll.Signal(w.changes)
	}
}

// follow watches the folders on the way to the file: see wayTo. It looks for the way again after it has
// begun to watch a folder, because a link could have been moved before that.
func (w *fileWatch) follow() {
	if w.notify == nil {
		return
	}
	for range maxLinks {
		folders, entries := wayTo(w.file.path)
		w.entries = entries
		if !w.watch(folders) {
			return
		}
	}
}

// watch watches these folders and no others, and reports whether that is a change. A folder that has
// been replaced by another one of the same name is watched anew.
func (w *fileWatch) watch(folders []string) (changed bool) {
	for folder := range w.folders {
		if !slices.Contains(folders, folder) {
			_ = w.notify.Remove(folder)
			delete(w.folders, folder)
		}
	}
	for _, folder := range folders {
		info, err := os.Stat(folder)
		if err != nil {
			continue
		}
		if known, ok := w.folders[folder]; ok {
			if os.SameFile(known, info) && slices.Contains(w.notify.WatchList(), folder) {
				continue
			}
			_ = w.notify.Remove(folder)
		}
		if w.notify.Add(folder) == nil {
			w.folders[folder] = info
			changed = true
		}
	}
	return changed
}

// maxLinks is the maximum number of symbolic links that are followed.
const maxLinks = 40

// wayTo returns the folders in which a change can lead a path to another file, and the entries in them that matter: each
// symbolic link on the way, and the file itself. If the way ends before the file, the last entry is the first that is missing.
// Folders are real ones, without links.
func wayTo(path string) (folders, entries []string) {
	if !filepath.IsAbs(path) {
		here, err := os.Getwd()
		if err != nil {
			return nil, nil
		}
		path = here + string(filepath.Separator) + path // not cleaned: ".." behind a link leads elsewhere
	}
	at := filepath.VolumeName(path) + string(filepath.Separator)
	rest := steps(path[len(filepath.VolumeName(path)):])
	for links := 0; len(rest) > 0; {
		step := rest[0]
		rest = rest[1:]
		if step == ".." {
			at = filepath.Dir(at)
			continue
		}
		entry := filepath.Join(at, step)
		info, err := os.Lstat(entry)
		link := err == nil && info.Mode()&os.ModeSymlink != 0
		if link || err != nil || len(rest) == 0 {
			folders, entries = append(folders, at), append(entries, entry)
		}
		switch {
		case err != nil:
			return folders, entries
		case !link:
			at = entry
			continue
		}
		target, err := os.Readlink(entry)
		if links++; err != nil || links > maxLinks {
			return folders, entries
		}
		if filepath.IsAbs(target) {
			volume := filepath.VolumeName(target)
			at, target = volume+string(filepath.Separator), target[len(volume):]
		}
		rest = append(steps(target), rest...)
	}
	return folders, entries
}

// steps takes a path apart.
func steps(path string) (all []string) {
	for step := range strings.SplitSeq(filepath.ToSlash(path), "/") {
		if step != "" && step != "." {
			all = append(all, step)
		}
	}
	return all
}
