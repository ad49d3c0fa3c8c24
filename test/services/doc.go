// Package services tests Tenure below Kubernetes services: rules such as
// kube-proxy writes, in its iptables and in its nftables mode, on real nodes
// with real packets. No Kubernetes runs; the tests write what its proxy would.
//
// It owns these rules. It promises that each case says as whom a client is
// seen, not only that it arrives. It must not import a package of the product
// but daemon/api.
package services
