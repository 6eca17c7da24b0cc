package policy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weir-go/ratelimit/internal/wait"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
	"github.com/weir-go/ratelimit/policy/internal/mark"
	"github.com/weir-go/ratelimit/policy/internal/poll"
)

// How long a file's watcher waits:
const (
	// filePoll is the time between two checks of a file without a notification:
	// some file systems send none, and a folder far up may be replaced.
	filePoll = 30 * time.Second
	// quiet is the time from a notification to the reading of the file. One change sends several.
	quiet = 15 * time.Millisecond
	// still is the time without a change before a file is read. A program that writes
	// a file in place writes parts, and a part may be a valid file with fewer rules.
	still = 500 * time.Millisecond
	// atMost is the maximum time for which continuous writing delays the reading of a file.
	atMost = 10 * time.Second
)

// File returns a source that reads a policy file. It notices a change within 100 ms, or within 30 s if the operating
// system reports no changes. The file may be replaced, and its path may contain links that move, as in a Kubernetes
// ConfigMap. A file written in place is read after half a second without a change, so it may be read half written. The
// [Set.Lists] files are read and watched as the rules are. Their paths are relative to path's folder. Links are followed.
func File(path string) Source { return &file{path: path, watch: fsnotify.NewWatcher} }

type file struct {
	path  string
	watch func() (*fsnotify.Watcher, error)

	mu       sync.Mutex
	watchers int  // running watchers
	known    hash // the last content found unchanged for long enough
}

type hash = [sha256.Size]byte

// Load reads the file. While a watcher runs, new content may be half
// written. Then Load waits until the content stays the same for a moment.
func (f *file) Load(ctx context.Context) (*Set, error) {
	c := f.read()
	for begin := time.Now(); c.err == nil && f.watched() && time.Since(begin) < atMost; {
		now := c.hash()
		if f.isKnown(now) {
			break
		}
		if wait.Sleep(ctx, still) != nil {
			return nil, ctx.Err()
		}
		if c = f.read(); c.hash() == now {
			break
		}
	}
	if c.err != nil {
		return nil, c.err
	}
	set, err := parseBeside(c.data, c.list)
	if err == nil {
		return set, nil
	}
	err = fmt.Errorf("%s: %w", f.path, err)
	if on, known := switchIn(c.data); known {
		err = &mark.Switched{On: on, Err: err}
	}
	return nil, err
}

// Validated marks Load's sets as validated.
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

// found records unchanged content, and adds to the number of running watchers.
func (f *file) found(h hash, watchers int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = h
	f.watchers += watchers
}

// content holds a file of rules and its lists' files.
type content struct {
	text
	lists map[string]text
}

// text is a file's content, or why it cannot be read.
type text struct {
	data []byte
	err  error
}

// read returns the content of the rules and their lists.
func (f *file) read() content {
	c := content{text: readText(f.path)}
	if c.err != nil {
		return c
	}
	for _, name := range filesOf(c.data) {
		if c.lists == nil {
			c.lists = map[string]text{}
		}
		c.lists[name] = readText(beside(f.path, name))
	}
	return c
}

// beside returns a file's path in the folder of another. It does
// not clean the path, because ".." after a link leads elsewhere.
func beside(path, name string) string {
	folder := len(path)
	for folder > len(filepath.VolumeName(path)) && !os.IsPathSeparator(path[folder-1]) {
		folder--
	}
	return path[:folder] + filepath.FromSlash(name)
}

// list returns the content of a list's file.
func (c *content) list(name string) ([]byte, error) {
	t, ok := c.lists[name]
	if !ok {
		return nil, fmt.Errorf("policy: %s was not read", name)
	}
	return t.data, t.err
}

// readText reads a regular file, because others may have no end.
func readText(path string) (t text) {
	info, err := os.Stat(path)
	if err != nil {
		return text{err: fmt.Errorf("policy: %w", err)}
	}
	if !info.Mode().IsRegular() {
		return text{err: fmt.Errorf("policy: %s is not a regular file", path)}
	}
	r, err := os.Open(path)
	if err != nil {
		return text{err: fmt.Errorf("policy: %w", err)}
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return text{err: fmt.Errorf("policy: %w", err)}
	}
	return text{data: data}
}

// hash returns a hash of the whole content. Without lists it is the rules' hash.
func (c *content) hash() hash {
	own := c.text.hash()
	if len(c.lists) == 0 {
		return own
	}
	h := sha256.New()
	h.Write(own[:])
	for _, name := range slices.Sorted(maps.Keys(c.lists)) {
		t := c.lists[name]
		each, of := t.hash(), sha256.Sum256([]byte(name))
		h.Write(of[:])
		h.Write(each[:])
	}
	return hash(h.Sum(nil))
}

// hash returns a hash of the file's content, or of the reason why it cannot be read.
func (t *text) hash() hash {
	if t.err != nil {
		return sha256.Sum256([]byte("\x00" + t.err.Error()))
	}
	return sha256.Sum256(t.data)
}

func (f *file) Changes(ctx context.Context) <-chan struct{} {
	changes := make(chan struct{}, 1)
	w := &fileWatch{file: f, changes: changes, folders: map[string]os.FileInfo{}}
	w.notify, _ = f.watch() // if this fails, it only polls
	w.last = w.read()
	f.found(w.last, 1)
	go w.run(ctx)
	return changes
}

// fileWatch reports changes of a file's content.
type fileWatch struct {
	file    *file
	notify  *fsnotify.Watcher // nil if there are no notifications
	changes chan struct{}
	last    hash                   // the latest reported content
	folders map[string]os.FileInfo // the watched folders
	entries []string               // the names of the entries in these folders that lead to the file
	lists   []string               // the lists' files when the rules were last read
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
	due := time.NewTimer(atMost) // the time to read the file
	due.Stop()
	defer due.Stop()
	var since time.Time // when the reading was first delayed; zero if the file need not be read
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
		case <-faults: // the watcher may have lost events
			put(still)
		case <-ticker.C:
			switch now := w.read(); {
			case !since.IsZero():
			case now == w.last:
				poll.Signal(w.changes) // the source is loaded again, in case its set is not the newest
			default:
				put(still)
			}
		case <-due.C:
			since = time.Time{}
			w.look()
		}
	}
}

// concerns reports whether an event is about an entry on the way to the file, or about a watched folder.
func (w *fileWatch) concerns(name string) bool {
	_, folder := w.folders[name]
	return folder || slices.Contains(w.entries, name)
}

// look reports a change if the content differs from the last reported one.
func (w *fileWatch) look() {
	if now := w.read(); now != w.last {
		w.last = now
		w.file.found(now, 0)
		poll.Signal(w.changes)
	}
}

// read watches the folders on the way to the rules and their lists, and then reads these files.
func (w *fileWatch) read() hash {
	for range maxLinks {
		w.follow()
		c := w.file.read()
		named := slices.Sorted(maps.Keys(c.lists))
		if slices.Equal(named, w.lists) {
			return c.hash()
		}
		w.lists = named // they are watched from now on
	}
	c := w.file.read()
	return c.hash()
}

// follow watches the folders on the way to the files: see wayTo. After it has begun to
// watch a folder, it determines the way again, because a link may have moved in between.
func (w *fileWatch) follow() {
	if w.notify == nil {
		return
	}
	for range maxLinks {
		folders, entries := wayTo(w.file.path)
		for _, name := range w.lists {
			f, e := wayTo(beside(w.file.path, name))
			folders, entries = append(folders, f...), append(entries, e...)
		}
		w.entries = entries
		if !w.watch(folders) {
			return
		}
	}
}

// watch watches the given folders and no others, and reports whether it has changed anything.
// If a folder has been replaced by another one of the same name, it watches the new one.
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

// maxLinks is the maximum number of symbolic links on a way.
const maxLinks = 40

// wayTo returns the folders in which a change can make a path lead to another file, and the
// relevant entries in them: each symbolic link on the way, and the file. If the way ends before
// the file, the last entry is the first missing one. Folders are real paths, without links.
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

// steps splits a path into its parts.
func steps(path string) (all []string) {
	for step := range strings.SplitSeq(filepath.ToSlash(path), "/") {
		if step != "" && step != "." {
			all = append(all, step)
		}
	}
	return all
}

func init() {
	read := func(path string) func(string) ([]byte, error) {
		return func(name string) ([]byte, error) {
			t := readText(beside(path, name))
			return t.data, t.err
		}
	}
	byhand.Complete = func(set any) any { return set.(*Set).complete() }
	byhand.CheckCost = func(cost any) error { return cost.(Cost).check() }
	byhand.Validate = func(set any) error { return set.(*Set).validate() }
	byhand.Parse = func(path string, data []byte) (any, error) { return parseBeside(data, read(path)) }
	byhand.Check = func(path string, data []byte, engines any) (any, any) {
		return checkAll(data, read(path), engines.([]Engine))
	}
}
