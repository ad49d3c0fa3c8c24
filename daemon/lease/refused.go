package lease

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// refused says in words why etcd, or what stands between, does not let this node
// in, and what to do; ok is false for all other errors. It is pure.
func (k Keys) refused(err error) (why, fix string, ok bool) {
	var login *loginError
	switch {
	case errors.As(err, &login):
		return "this node has no login", "write the user's password into the file of --etcd-password-file, which is read again by itself, " +
			"or give the user that password in etcd: etcdctl user passwd", true
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return "its user may not read and write all keys under " + k.All(), fmt.Sprintf("give the user's role that right: "+
			"etcdctl role grant-permission ROLE --prefix=true readwrite %s, and the user that role: etcdctl user grant-role USER ROLE", k.All()), true
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return "it has users, and this node names none", "set --etcd-username and --etcd-password-file, or show it a certificate whose common name is a user's", true
	case errors.Is(err, rpctypes.ErrInvalidAuthToken), errors.Is(err, rpctypes.ErrAuthOldRevision):
		return "it does not take the token that it gave", "look at etcd's --auth-token and at the clocks of its members; this is tried again by itself", true
	}
	return "", "", false
}
