package grpclimit_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/inflight"
)

// sendings are the possible failures when a server sends, and whether the client is to blame.
var sendings = map[string]struct {
	err      error
	byClient bool
}{
	"the client has closed the connection": {status.Error(codes.Unavailable, "transport is closing"), true},
	"the client has cancelled":             {status.Error(codes.Canceled, "context canceled"), true},
	"the message cannot be encoded":        {status.Error(codes.Internal, "grpc: error while marshaling"), false},
}

// failingToSend is a handler that sends to the last, and hides the reason if hidden is set.
func failingToSend(hidden bool) grpc.StreamHandler {
	return func(_ any, s grpc.ServerStream) error {
		err := s.SendMsg(nil)
		if hidden {
			return errors.New("sending failed")
		}
		return err
	}
}

func TestAClientThatDoesNotTakeTheAnswerPays(t *testing.T) {
	for name, row := range sendings {
		t.Run(name, func(t *testing.T) {
			l, left := budget(t)
			i := interceptor(t, l, grpclimit.Options{Settle: grpclimit.RefundServerErrors})
			err := i.StreamServerInterceptor()(nil, &fakeStream{sending: row.err}, &grpc.StreamServerInfo{}, failingToSend(false))
			assert.Equal(t, row.err, err)
			assert.Equal(t, row.byClient, left() == 9)
		})
	}
}

func TestAnAdaptiveLimitLearnsNothingFromAClientThatDoesNotTakeTheAnswer(t *testing.T) {
	for name, row := range sendings {
		for _, hidden := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				var learnt []inflight.Outcome
				i := shedding(t, 1, nil, &grpclimit.InflightOptions{Outcome: func(_ *grpclimit.Call, _ codes.Code, usual inflight.Outcome) inflight.Outcome {
					learnt = append(learnt, usual)
					return learnt[0]
				}})
				ss := &fakeStream{sending: row.err}
				require.Error(t, i.StreamServerInterceptor()(nil, ss, &grpc.StreamServerInfo{IsServerStream: true}, failingToSend(hidden)))
				want := inflight.Cancelled
				if row.byClient {
					want = inflight.Ignored
				}
				assert.Equal(t, []inflight.Outcome{want}, learnt)
			})
		}
	}
}

func TestAnAdaptiveLimitLearnsNothingFromABrokenMessage(t *testing.T) {
	var learnt []inflight.Outcome
	i := shedding(t, 1, nil, &grpclimit.InflightOptions{Outcome: func(_ *grpclimit.Call, _ codes.Code, usual inflight.Outcome) inflight.Outcome {
		learnt = append(learnt, usual)
		return learnt[0]
	}})
	broken := status.Error(codes.Internal, "cannot unmarshal")
	ss := &fakeStream{ctx: context.Background(), received: []error{broken}}
	err := i.StreamServerInterceptor()(nil, ss, &grpc.StreamServerInfo{IsClientStream: true}, func(_ any, s grpc.ServerStream) error { return s.RecvMsg(nil) })
	assert.Equal(t, broken, err)
	assert.Equal(t, []inflight.Outcome{inflight.Ignored}, learnt)
}
