package grpclimit

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"net/url"

	"google.golang.org/grpc/credentials"

	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
)

// SPIFFEID is a key function for the SPIFFE ID in the client's certificate. Without an ID, the error is
// [keyfunc.ErrNoKey]. If the certificate has several URIs, or the ID has no path or is longer than 1 KiB, it is
// [keyfunc.ErrMalformedKey]. If crypto/tls has not verified the certificate itself, it is [keyfunc.ErrMisconfigured].
func SPIFFEID(c *Call) (string, error) {
	leaf, err := c.certificate()
	if err != nil {
		return "", err
	}
	id, err := spiffeID(leaf.URIs)
	if err != nil {
		return "", err
	}
	return keytext.Short(id, "SPIFFE ID")
}

// spiffeID returns a certificate's only URI, if it is a SPIFFE ID.
func spiffeID(uris []*url.URL) (string, error) {
	found := false
	for _, u := range uris {
		found = found || u.Scheme == "spiffe"
	}
	switch {
	case !found:
		return "", fmt.Errorf("%w: no SPIFFE ID in the certificate", keyfunc.ErrNoKey)
	case len(uris) > 1:
		return "", fmt.Errorf("%w: %d URIs in a certificate with a SPIFFE ID", keyfunc.ErrMalformedKey, len(uris))
	}
	u := uris[0]
	if u.Host == "" || u.Path == "" || u.Path == "/" || u.Port() != "" || u.User != nil || u.Opaque != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", fmt.Errorf("%w: the certificate's SPIFFE ID is malformed", keyfunc.ErrMalformedKey)
	}
	return u.String(), nil
}

// CertificateSubject is [SPIFFEID] for the certificate's subject, such as "CN=billing,O=Example".
// Certificates with the same subject have the same key, even if different authorities issued them.
func CertificateSubject(c *Call) (string, error) {
	leaf, err := c.certificate()
	if err != nil {
		return "", err
	}
	subject, err := subjectOf(leaf)
	if err != nil {
		return "", err
	}
	if subject == "" {
		return "", fmt.Errorf("%w: no subject in the certificate", keyfunc.ErrNoKey)
	}
	return keytext.Short(subject, "certificate's subject")
}

// subjectOf returns the whole subject. leaf.Subject would contain only the last value of a repeated type.
func subjectOf(leaf *x509.Certificate) (string, error) {
	var names pkix.RDNSequence
	if len(leaf.RawSubject) == 0 {
		return leaf.Subject.String(), nil // the certificate was not parsed
	}
	if rest, err := asn1.Unmarshal(leaf.RawSubject, &names); err != nil || len(rest) > 0 {
		return "", fmt.Errorf("%w: the certificate's subject is malformed", keyfunc.ErrMalformedKey)
	}
	return names.String(), nil
}

// certificate returns the client's verified certificate.
func (c *Call) certificate() (*x509.Certificate, error) {
	p := c.peer()
	if p == nil || p.AuthInfo == nil {
		return nil, fmt.Errorf("%w: the connection has no TLS", keyfunc.ErrNoKey)
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: the connection has no TLS that is known", keyfunc.ErrNoKey)
	case len(info.State.VerifiedChains) > 0 && len(info.State.VerifiedChains[0]) > 0:
		return info.State.VerifiedChains[0][0], nil
	case len(info.State.PeerCertificates) > 0:
		return nil, fmt.Errorf("%w: %w: the client's certificate is not verified", keyfunc.ErrMisconfigured, keyfunc.ErrNoKey)
	}
	return nil, fmt.Errorf("%w: the client has no certificate", keyfunc.ErrNoKey)
}
