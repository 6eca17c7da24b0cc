package httplimit

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// rpc is the protocol of a remote procedure call. Clients of such a protocol cannot read a problem
// document. For example, a gRPC client would treat the document as UNAVAILABLE, without a time for a retry.
type rpc uint8

const (
	noRPC rpc = iota
	grpc
	grpcWeb
	grpcWebText
	connectUnary
	connectStream
)

// protocolOf returns the protocol for a request's refusal.
func protocolOf(r *http.Request, plain bool) rpc {
	if plain {
		return noRPC
	}
	return rpcOf(r)
}

// rpcOf determines a request's protocol from its content type. For
// Connect's unary calls it uses the fields required by their specification.
func rpcOf(r *http.Request) rpc {
	if r.Method == http.MethodGet {
		if strings.Contains(r.URL.RawQuery, "connect=v1") && r.URL.Query().Get("connect") == "v1" {
			return connectUnary
		}
		return noRPC
	}
	kind, _, _ := strings.Cut(contentType(r), "+")
	switch kind {
	case "application/grpc":
		return grpc
	case "application/grpc-web":
		return grpcWeb
	case "application/grpc-web-text":
		return grpcWebText
	case "application/connect":
		return connectStream
	}
	if version := r.Header["Connect-Protocol-Version"]; len(version) == 1 && version[0] == "1" {
		return connectUnary
	}
	return noRPC
}

// contentType returns the request's media type, without parameters.
func contentType(r *http.Request) string {
	value := r.Header["Content-Type"]
	if len(value) == 0 {
		return ""
	}
	media, _, _ := strings.Cut(value[0], ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// keyCode returns gRPC's code for the status of a request whose key is missing or malformed.
func keyCode(status int) rpcstatus.Code {
	switch status {
	case http.StatusUnauthorized:
		return rpcstatus.Unauthenticated
	case http.StatusForbidden:
		return rpcstatus.PermissionDenied
	}
	return rpcstatus.InvalidArgument
}

// writeRPC sends an answer in the request's protocol.
func writeRPC(w http.ResponseWriter, r *http.Request, protocol rpc, a rpcstatus.Answer) {
	h := w.Header()
	h.Del("Content-Length")
	switch protocol {
	case grpc:
		// the response has no body, and its header fields are the trailers
		h.Set("Content-Type", contentType(r))
		grpcTrailers(a, h.Set)
		w.WriteHeader(http.StatusOK)
	case grpcWeb, grpcWebText:
		var trailers strings.Builder
		grpcTrailers(a, func(name, value string) { trailers.WriteString(strings.ToLower(name) + ": " + value + "\r\n") })
		h.Set("Content-Type", contentType(r))
		body := frame(grpcWebTrailers, []byte(trailers.String()))
		if protocol == grpcWebText {
			body = base64.StdEncoding.AppendEncode(nil, body)
		}
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(body) // a client already gone needs no answer
	case connectStream:
		body, _ := json.Marshal(connectEnd{connectError(a)}) // encoding strings cannot fail
		h.Set("Content-Type", contentType(r))
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(frame(connectEndOfStream, body))
	case connectUnary:
		body, _ := json.Marshal(connectError(a))
		h.Set("Content-Type", "application/json")
		w.WriteHeader(connectCodes[a.Code].status)
		_, _ = w.Write(body)
	}
}

// grpcTrailers sets the trailers of a gRPC call.
func grpcTrailers(a rpcstatus.Answer, set func(name, value string)) {
	set("Grpc-Status", strconv.Itoa(int(a.Code)))
	set("Grpc-Message", percentEncode(a.Message))
	set("Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(a.AppendStatus(nil)))
	if pushback := a.Pushback(); pushback != "" {
		set(rpcstatus.PushbackKey, pushback)
	}
}

// percentEncode encodes a message for a header field as the gRPC protocol
// requires. Printable ASCII stays as it is, except the percent sign.
func percentEncode(s string) string {
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

// The flags of frames without a message.
const (
	connectEndOfStream = 0x02
	grpcWebTrailers    = 0x80
)

// frame returns a frame with its length as prefix.
func frame(flags byte, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(payload)))
	return append(b, payload...)
}

// connectProblem is an error in the form of the Connect protocol.
type connectProblem struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Details []connectDetail `json:"details,omitempty"`
}

type connectDetail struct {
	Type  string `json:"type"`
	Value string `json:"value"` // base64 without padding
}

// connectEnd is a stream's last message.
type connectEnd struct {
	Error connectProblem `json:"error"`
}

func connectError(a rpcstatus.Answer) connectProblem {
	p := connectProblem{Code: connectCodes[a.Code].name, Message: a.Message}
	details, n := a.Details(new([rpcstatus.RetryInfoSize]byte))
	for _, d := range details[:n] {
		p.Details = append(p.Details, connectDetail{
			strings.TrimPrefix(d.URL, rpcstatus.TypePrefix), base64.RawStdEncoding.EncodeToString(d.Value),
		})
	}
	return p
}

// connectCodes are the names of codes in the Connect protocol, and the statuses of unary calls.
var connectCodes = map[rpcstatus.Code]struct {
	name   string
	status int
}{
	rpcstatus.Canceled:          {"canceled", 499},
	rpcstatus.InvalidArgument:   {"invalid_argument", http.StatusBadRequest},
	rpcstatus.DeadlineExceeded:  {"deadline_exceeded", http.StatusGatewayTimeout},
	rpcstatus.PermissionDenied:  {"permission_denied", http.StatusForbidden},
	rpcstatus.ResourceExhausted: {"resource_exhausted", http.StatusTooManyRequests},
	rpcstatus.Internal:          {"internal", http.StatusInternalServerError},
	rpcstatus.Unavailable:       {"unavailable", http.StatusServiceUnavailable},
	rpcstatus.Unauthenticated:   {"unauthenticated", http.StatusUnauthorized},
}
