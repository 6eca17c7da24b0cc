package grpclimit_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

func uris(list ...string) (out []*url.URL) {
	for _, u := range list {
		out = append(out, ratelimit.Must(url.Parse(u)))
	}
	return out
}

// issue returns a certificate signed by ca or, if ca is nil, a new authority's own certificate.
func issue(ca *tls.Certificate, template *x509.Certificate) tls.Certificate {
	key := ratelimit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, any(key)
	if ca != nil {
		parent, signer = ca.Leaf, ca.PrivateKey
	}
	der := ratelimit.Must(x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: ratelimit.Must(x509.ParseCertificate(der))}
}

func TestTheIdentityOfAClientsCertificateIsAKey(t *testing.T) {
	const id = "spiffe://example.org/ns/prod/sa/billing"
	ca := issue(nil, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	server := issue(&ca, &x509.Certificate{DNSNames: []string{"server.example"}})
	client := issue(&ca, &x509.Certificate{Subject: pkix.Name{CommonName: "billing", Organization: []string{"Example"}}, URIs: uris(id), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	for name, row := range map[string]struct {
		auth  tls.ClientAuthType
		key   func(*grpclimit.Call) (string, error)
		certs []tls.Certificate
		code  codes.Code
		want  []string
	}{
		"an ID":          {tls.RequireAndVerifyClientCert, grpclimit.SPIFFEID, []tls.Certificate{client}, codes.OK, []string{id}},
		"a subject":      {tls.VerifyClientCertIfGiven, grpclimit.CertificateSubject, []tls.Certificate{client}, codes.OK, []string{"CN=billing,O=Example"}},
		"no certificate": {tls.VerifyClientCertIfGiven, grpclimit.CertificateSubject, nil, codes.InvalidArgument, nil},
		// this server's options are wrong
		"requested, and not verified":       {tls.RequestClientCert, grpclimit.SPIFFEID, []tls.Certificate{client}, codes.Internal, nil},
		"required, and not verified":        {tls.RequireAnyClientCert, grpclimit.CertificateSubject, []tls.Certificate{client}, codes.Internal, nil},
		"an optional one, and not verified": {tls.RequestClientCert, keyfunc.Optional(grpclimit.SPIFFEID), []tls.Certificate{client}, codes.Internal, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var keys []string
			seen := ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), &ratelimit.Options[string]{OnDecision: func(e ratelimit.Event[string]) { keys = append(keys, e.Key) }}))
			secured := grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: row.auth, ClientCAs: pool}))
			addr := start(t, new(service).server(append(with(interceptor(t, ratelimit.Map(seen, row.key), grpclimit.Options{})), secured)...))
			conn := dial(t, addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{Certificates: row.certs, RootCAs: pool, ServerName: "server.example"})))
			assert.Equal(t, row.code, call(t.Context(), testgrpc.NewTestServiceClient(conn)).code)
			assert.Equal(t, row.want, keys)
		})
	}
}

// over returns a call over a connection whose client has a verified certificate.
func over(leaf *x509.Certificate) *grpclimit.Call {
	state := tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}
	return grpclimit.NewCall(peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}}), "", nil)
}

func TestAMalformedIdentityIsNoKey(t *testing.T) {
	long := strings.Repeat("x", 1025)
	for name, row := range map[string]struct {
		uris []string
		want error
	}{
		"none":             {nil, keyfunc.ErrNoKey},
		"another URI":      {[]string{"https://example.org/billing"}, keyfunc.ErrNoKey},
		"several URIs":     {[]string{"spiffe://example.org/billing", "https://example.org/billing"}, keyfunc.ErrMalformedKey},
		"several IDs":      {[]string{"spiffe://example.org/billing", "spiffe://example.org/admin"}, keyfunc.ErrMalformedKey},
		"no trust domain":  {[]string{"spiffe:///billing"}, keyfunc.ErrMalformedKey},
		"no path":          {[]string{"spiffe://example.org"}, keyfunc.ErrMalformedKey},
		"a port":           {[]string{"spiffe://example.org:443/billing"}, keyfunc.ErrMalformedKey},
		"a user":           {[]string{"spiffe://me@example.org/billing"}, keyfunc.ErrMalformedKey},
		"a query":          {[]string{"spiffe://example.org/billing?admin=1"}, keyfunc.ErrMalformedKey},
		"a fragment":       {[]string{"spiffe://example.org/billing#admin"}, keyfunc.ErrMalformedKey},
		"above one KiB":    {[]string{"spiffe://example.org/" + long}, keyfunc.ErrMalformedKey},
		"an opaque scheme": {[]string{"spiffe:billing"}, keyfunc.ErrMalformedKey},
	} {
		_, err := grpclimit.SPIFFEID(over(&x509.Certificate{URIs: uris(row.uris...)}))
		assert.ErrorIs(t, err, row.want, name)
		assert.NotErrorIs(t, err, keyfunc.ErrMisconfigured, name)
	}
	for subject, want := range map[string]error{"": keyfunc.ErrNoKey, long: keyfunc.ErrMalformedKey} {
		_, err := grpclimit.CertificateSubject(over(&x509.Certificate{Subject: pkix.Name{CommonName: subject}}))
		assert.ErrorIs(t, err, want)
	}
	for name, call := range map[string]*grpclimit.Call{"no peer": new(grpclimit.Call), "no TLS": callWith()} {
		_, err := grpclimit.SPIFFEID(call)
		assert.ErrorIs(t, err, keyfunc.ErrNoKey, name)
		assert.NotErrorIs(t, err, keyfunc.ErrMisconfigured, name)
	}
}

func TestSubjectsThatRepeatATypeAreDistinguished(t *testing.T) {
	seen := map[string]bool{}
	for _, names := range [][]string{{"bob"}, {"alice", "bob"}, {"bob", "alice"}} {
		var subject pkix.RDNSequence
		for _, name := range names {
			subject = append(subject, pkix.RelativeDistinguishedNameSET{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: name}})
		}
		leaf := &x509.Certificate{RawSubject: ratelimit.Must(asn1.Marshal(subject))}
		leaf.Subject.FillFromRDNSequence(&subject)
		key, err := grpclimit.CertificateSubject(over(leaf))
		require.NoError(t, err)
		assert.False(t, seen[key], key)
		seen[key] = true
	}
}
