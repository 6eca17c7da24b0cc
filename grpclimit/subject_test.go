package grpclimit_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

func TestSubjectsThatRepeatATypeAreDistinguished(t *testing.T) {
	seen := map[string]bool{}
	for _, names := range [][]string{{"bob"}, {"alice", "bob"}, {"bob", "alice"}} {
		var subject pkix.RDNSequence
		for _, name := range names {
			subject = append(subject, pkix.RelativeDistinguishedNameSET{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: name}})
		}
		raw, err := asn1.Marshal(subject)
		require.NoError(t, err)
		leaf := &x509.Certificate{RawSubject: raw}
		leaf.Subject.FillFromRDNSequence(&subject)
		state := tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf}}}
		key, err := grpclimit.CertificateSubject(grpclimit.NewCall(peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}}), "", nil))
		require.NoError(t, err)
		assert.False(t, seen[key], key)
		seen[key] = true
	}
}

func TestTheTrailerMayNotBeOneThatGRPCUsesItself(t *testing.T) {
	for _, name := range []string{"content-type", "TE", "user-agent", "grpc-status"} {
		_, err := grpclimit.New(&stub{decision: ratelimit.Decision{Allowed: true}}, &grpclimit.Options{DegradedTrailer: name})
		assert.ErrorContains(t, err, "Options.DegradedTrailer", name)
	}
}
