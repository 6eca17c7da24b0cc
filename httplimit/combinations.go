package httplimit

import "net/http"

// combinations makes, for each set of optional methods, a writer that has these and no
// others. A method set is fixed when a program is compiled, so each set needs a type.
var combinations = [1 << 4]func(x *watcher) http.ResponseWriter{
	0: func(x *watcher) http.ResponseWriter { return x },
	hasFlush: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			flusher
		}{x, flusher{x}}
	},
	hasHijack: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			hijacker
		}{x, hijacker{x}}
	},
	hasFlush | hasHijack: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			flusher
			hijacker
		}{x, flusher{x}, hijacker{x}}
	},
	hasPush: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			pusher
		}{x, pusher{x}}
	},
	hasFlush | hasPush: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			flusher
			pusher
		}{x, flusher{x}, pusher{x}}
	},
	hasHijack | hasPush: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			hijacker
			pusher
		}{x, hijacker{x}, pusher{x}}
	},
	hasFlush | hasHijack | hasPush: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			flusher
			hijacker
			pusher
		}{x, flusher{x}, hijacker{x}, pusher{x}}
	},
	hasCloseNotify: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			notifier
		}{x, notifier{x}}
	},
	hasFlush | hasCloseNotify: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			flusher
			notifier
		}{x, flusher{x}, notifier{x}}
	},
	hasHijack | hasCloseNotify: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			hijacker
			notifier
		}{x, hijacker{x}, notifier{x}}
	},
	hasFlush | hasHijack | hasCloseNotify: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			flusher
			hijacker
			notifier
		}{x, flusher{x}, hijacker{x}, notifier{x}}
	},
	hasPush | hasCloseNotify: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			pusher
			notifier
		}{x, pusher{x}, notifier{x}}
	},
	hasFlush | hasPush | hasCloseNotify: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			flusher
			pusher
			notifier
		}{x, flusher{x}, pusher{x}, notifier{x}}
	},
	hasHijack | hasPush | hasCloseNotify: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			hijacker
			pusher
			notifier
		}{x, hijacker{x}, pusher{x}, notifier{x}}
	},
	hasFlush | hasHijack | hasPush | hasCloseNotify: func(x *watcher) http.ResponseWriter {
		return &struct {
			*watcher
			flusher
			hijacker
			pusher
			notifier
		}{x, flusher{x}, hijacker{x}, pusher{x}, notifier{x}}
	},
}
