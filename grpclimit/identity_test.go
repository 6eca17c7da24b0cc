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

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := ratelimit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := ratelimit.Must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	return &authority{ratelimit.Must(x509.ParseCertificate(der)), key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// issue returns a certificate with a subject and URIs.
func (a *authority) issue(t *testing.T, subject string, uris ...string) tls.Certificate {
	t.Helper()
	key := ratelimit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"server.example"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if subject != "" {
		template.Subject = pkix.Name{CommonName: subject, Organization: []string{"Example"}}
	}
	for _, u := range uris {
		template.URIs = append(template.URIs, ratelimit.Must(url.Parse(u)))
	}
	der := ratelimit.Must(x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// secured is a server that requires certificates. It records calls.
type secured struct {
	addr string
	ca   *authority
	keys chan string
}

func serveTLS(t *testing.T, auth tls.ClientAuthType, key func(*grpclimit.Call) (string, error)) *secured {
	t.Helper()
	s := &secured{ca: newAuthority(t), keys: make(chan string, 1)}
	seen := ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), &ratelimit.Options[string]{OnDecision: func(e ratelimit.Event[string]) { s.keys <- e.Key }}))
	i := interceptor(t, ratelimit.Map(seen, key), grpclimit.Options{})
	server := grpc.NewServer(append(with(i), grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{s.ca.issue(t, "")}, ClientAuth: auth, ClientCAs: s.ca.pool(),
	})))...)
	testgrpc.RegisterTestServiceServer(server, &service{})
	s.addr = start(t, server)
	return s
}

func (s *secured) call(t *testing.T, certs ...tls.Certificate) answer {
	t.Helper()
	conn := dial(t, s.addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		Certificates: certs, RootCAs: s.ca.pool(), ServerName: "server.example",
	})))
	return call(context.Background(), testgrpc.NewTestServiceClient(conn))
}

func TestTheIdentityOfAVerifiedCertificateIsAKey(t *testing.T) {
	const id = "spiffe://example.org/ns/prod/sa/billing"
	s := serveTLS(t, tls.RequireAndVerifyClientCert, grpclimit.SPIFFEID)
	assert.Equal(t, codes.OK, s.call(t, s.ca.issue(t, "billing", id)).code)
	assert.Equal(t, id, <-s.keys)

	s = serveTLS(t, tls.VerifyClientCertIfGiven, grpclimit.CertificateSubject)
	assert.Equal(t, codes.OK, s.call(t, s.ca.issue(t, "billing", id)).code)
	assert.Equal(t, "CN=billing,O=Example", <-s.keys)
	assert.Equal(t, codes.InvalidArgument, s.call(t).code, "no certificate")
	assert.Equal(t, codes.InvalidArgument, s.call(t, s.ca.issue(t, "", id)).code, "no subject")
	assert.Equal(t, codes.InvalidArgument, s.call(t, s.ca.issue(t, strings.Repeat("x", 1025))).code, "a subject above 1 KiB")
	assert.Empty(t, s.keys)
}

func TestAMalformedSPIFFEIDIsNoKey(t *testing.T) {
	s := serveTLS(t, tls.RequireAndVerifyClientCert, grpclimit.SPIFFEID)
	for name, uris := range map[string][]string{
		"none":             nil,
		"another URI":      {"https://example.org/billing"},
		"several URIs":     {"spiffe://example.org/billing", "https://example.org/billing"},
		"several IDs":      {"spiffe://example.org/billing", "spiffe://example.org/admin"},
		"no trust domain":  {"spiffe:///billing"},
		"no path":          {"spiffe://example.org"},
		"a port":           {"spiffe://example.org:443/billing"},
		"a user":           {"spiffe://me@example.org/billing"},
		"a query":          {"spiffe://example.org/billing?admin=1"},
		"a fragment":       {"spiffe://example.org/billing#admin"},
		"above one KiB":    {"spiffe://example.org/" + strings.Repeat("x", 1024)},
		"an opaque scheme": {"spiffe:billing"},
	} {
		assert.Equal(t, codes.InvalidArgument, s.call(t, s.ca.issue(t, "billing", uris...)).code, name)
	}
	assert.Empty(t, s.keys)
}

func TestAnUnverifiedCertificateIsNoIdentity(t *testing.T) {
	stranger := newAuthority(t).issue(t, "admin", "spiffe://example.org/admin")
	for _, auth := range []tls.ClientAuthType{tls.RequestClientCert, tls.RequireAnyClientCert} {
		for name, key := range map[string]func(*grpclimit.Call) (string, error){
			"SPIFFE ID": grpclimit.SPIFFEID, "subject": grpclimit.CertificateSubject, "optional": keyfunc.Optional(grpclimit.SPIFFEID),
		} {
			s := serveTLS(t, auth, key)
			assert.Equal(t, codes.Internal, s.call(t, stranger).code, "%s, %v: the server is built wrongly", name, auth)
			assert.Empty(t, s.keys)
		}
	}
}

func TestWithoutTLSThereIsNoIdentity(t *testing.T) {
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
		state := tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}
		key, err := grpclimit.CertificateSubject(grpclimit.NewCall(peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}}), "", nil))
		require.NoError(t, err)
		assert.False(t, seen[key], key)
		seen[key] = true
	}
}
