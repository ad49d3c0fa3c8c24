package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tenure-cni/tenure/conf"
)

// login is how a user with a password is known to etcd: by a token, which is
// used until etcd does not take it any more. etcd's client asks for one with
// every stream, and so with every renewal of a lease, each of which costs etcd a
// password hash; and it keeps the password of its start. Here the file is read
// for each token.
type login struct {
	etcd conf.Etcd
	conn *grpc.ClientConn // the client's own; set before the first call

	turn chan struct{} // capacity 1: one asks, the others wait for what it gets
	// Of whose turn it is.
	asked    time.Time
	refusal  error  // nil: the last question was not refused
	password string // that was refused
	pause    time.Duration

	mu    sync.Mutex
	token string // "" where etcd has no users
	known bool   // token is what etcd said last
	since time.Time
	taken time.Time // when a call with the token was answered last
}

const (
	// A token is asked for once in askGap, however often etcd drops it, and less
	// and less often, down to once in askRefused, with a password that it
	// refuses. Another password is tried at once.
	askGap     = time.Second
	askRefused = 30 * time.Second
	// A member has heard of a new token after tokenLag, as a rule, and surely
	// after tokenFresh.
	tokenLag   = 100 * time.Millisecond
	tokenFresh = 300 * time.Millisecond
)

// loginError says that there is no token to be had, and why.
type loginError struct {
	what string
	err  error
}

func (e *loginError) Error() string { return e.what + ": " + e.err.Error() }
func (e *loginError) Unwrap() error { return e.err }

var errNoPassword = errors.New("the file is empty")

func newLogin(e conf.Etcd) *login { return &login{etcd: e, turn: make(chan struct{}, 1)} }

// options put the login into every call of a client.
func (l *login) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream)}
}

// unary makes a call with the token, and again where etcd does not take it: then
// nothing was done.
func (l *login) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method == pb.Auth_Authenticate_FullMethodName {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	return unlessLapsed(ctx, func() error {
		token, err := l.get(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		err = invoke(with(ctx, token), method, req, reply, cc, opts...)
		l.judge(token, began, err)
		return err
	})
}

// unlessLapsed makes a call that etcd may refuse for its token alone, up to four
// times: after what a member may lag behind that has not heard of a new token,
// after the time for which a token is kept in any case, and with another one.
func unlessLapsed(ctx context.Context, call func() error) error {
	err := call()
	for _, pause := range []time.Duration{tokenLag, tokenFresh, tokenLag} {
		if !lapsed(err) || !wait(ctx, pause) {
			break
		}
		err = call()
	}
	return err
}

// stream opens a stream with the token. Who opened it learns by an answer that
// the token is not taken, and opens another.
func (l *login) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	token, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	s, err := open(with(ctx, token), desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &loggedIn{s, l, token, began}, nil
}

// loggedIn is a stream that tells when etcd does not take its token.
type loggedIn struct {
	grpc.ClientStream
	login *login
	token string
	began time.Time
}

// RecvMsg implements grpc.ClientStream. A watch that is refused for its token
// looks to the client like a connection that broke: it opens another stream, and
// goes on where it was.
func (s *loggedIn) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.login.judge(s.token, s.began, err)
	if r, ok := m.(*pb.WatchResponse); ok && err == nil && r.Canceled && slices.Contains(lapsedReasons(), r.CancelReason) {
		s.login.drop(s.token)
		return status.Error(codes.Unavailable, r.CancelReason)
	}
	return err
}

func with(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
}

// lapsed says that etcd refused a call for its token alone: it has ended, is not
// known to a member that was restarted, is of before a change of users, or is
// needed since users were introduced.
func lapsed(err error) bool {
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// lapsedReasons are the same as a watch has them: in words only.
func lapsedReasons() []string {
	return []string{rpctypes.ErrGRPCInvalidAuthToken.Error(), rpctypes.ErrGRPCAuthOldRevision.Error(), rpctypes.ErrGRPCUserEmpty.Error()}
}

// get is the token, which is asked for if there is none.
func (l *login) get(ctx context.Context) (string, error) {
	if token, known := l.last(); known {
		return token, nil
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return "", status.FromContextError(ctx.Err()).Err()
	}
	if token, known := l.last(); known {
		return token, nil
	}
	return l.ask(ctx)
}

func (l *login) last() (token string, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token, l.known
}

func (l *login) keep(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.known, l.since = token, true, time.Now()
}

// drop forgets a token, unless another one has come meanwhile. One that is new is
// kept: a member that does not know it has yet to hear of it.
func (l *login) drop(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token == token && time.Since(l.since) >= tokenFresh {
		l.known = false
	}
}

// judge learns of a token by how a call with it ended that began then.
func (l *login) judge(token string, began time.Time, err error) {
	switch {
	case err == nil:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.taken = time.Now()
	case lapsed(err):
		l.drop(token)
	case status.Code(err) == codes.DeadlineExceeded:
		l.doubt(token, began)
	}
}

// doubt forgets a token with which nothing has been answered since a call began
// that got no answer in its time. etcd's own tokens name the place in its log at
// which they were given, and a member that is not there yet waits for it before
// it says that it does not know the token: after a restore, for days.
func (l *login) doubt(token string, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if token != "" && l.token == token && l.taken.Before(began) {
		l.known = false
	}
}

// ask gets a token for the password that is in the file now. A password that
// was refused is not tried again before its pause.
func (l *login) ask(ctx context.Context) (string, error) {
	password, err := l.etcd.Password()
	if err == nil && password == "" {
		err = errNoPassword
	}
	if err != nil {
		return "", &loginError{fmt.Sprintf("no password of etcd user %q in %s", l.etcd.Username, l.etcd.PasswordFile), err}
	}
	again := l.refusal != nil && password == l.password
	if again && time.Since(l.asked) < l.pause {
		return "", l.refusal
	}
	if !wait(ctx, time.Until(l.asked.Add(askGap))) {
		return "", status.FromContextError(ctx.Err()).Err()
	}
	l.asked = time.Now()
	token, err := l.authenticate(ctx, password)
	if !errors.Is(err, rpctypes.ErrAuthFailed) {
		if err == nil {
			l.refusal = nil
			l.keep(token)
		}
		return token, err
	}
	if !again {
		l.pause = askGap
	}
	l.password, l.pause = password, min(2*l.pause, askRefused)
	l.refusal = &loginError{fmt.Sprintf("etcd refuses user %q with the password in %s", l.etcd.Username, l.etcd.PasswordFile), err}
	return "", l.refusal
}

// authenticate asks etcd, a second member too where the first takes its time. An
// etcd without users has no token to give, and needs none.
func (l *login) authenticate(ctx context.Context, password string) (string, error) {
	call := maxCall
	if until, ok := ctx.Deadline(); ok {
		call = min(call, time.Until(until))
	}
	return hedged(ctx, patient(call), func(ctx context.Context) (string, error) {
		resp, err := pb.NewAuthClient(l.conn).Authenticate(ctx, &pb.AuthenticateRequest{Name: l.etcd.Username, Password: password}, grpc.WaitForReady(true))
		switch err = rpctypes.Error(err); {
		case errors.Is(err, rpctypes.ErrAuthNotEnabled):
			return "", nil
		case err != nil:
			return "", err
		}
		return resp.Token, nil
	})
}
