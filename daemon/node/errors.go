package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/attach"
	"github.com/tenure-cni/tenure/ipam"
)

// toCNI is the one mapping from errors to CNI codes.
func toCNI(err error) *types.Error {
	if err == nil {
		return nil
	}
	var already *types.Error
	if errors.As(err, &already) {
		return already
	}
	return &types.Error{Code: code(err), Msg: err.Error()}
}

func code(err error) uint {
	var faults conf.Faults
	switch {
	case errors.Is(err, conf.ErrDecode):
		return api.CodeDecode
	case errors.As(err, &faults):
		return api.CodeInvalidConfig
	case errors.Is(err, ipam.ErrFull):
		return api.CodeNoAddress
	case errors.Is(err, ipam.ErrUnavailable):
		return api.CodeAddressUnavailable
	case errors.Is(err, attach.ErrInterfaceExists), errors.Is(err, attach.ErrForeignHost):
		return api.CodeInterfaceExists
	case errors.Is(err, attach.ErrNamespace):
		return api.CodeNamespace
	case errors.Is(err, attach.ErrNoBridge), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return api.CodeTryAgain
	}
	return api.CodeIO
}

func cniError(code uint, format string, args ...any) *types.Error {
	return &types.Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}
