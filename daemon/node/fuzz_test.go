package node

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tenure-cni/tenure/conf"
	"github.com/tenure-cni/tenure/daemon/api"
	"github.com/tenure-cni/tenure/daemon/lease"
)

// FuzzRequest: one CNI call as the daemon reads it. Every fault has a code, and what is
// asked for of a subnet has its family.
func FuzzRequest(f *testing.F) {
	prev := `{"cniVersion":"1.0.0","name":"tenure","type":"tenure","prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/n"}],"ips":[{"address":"10.5.1.9/24","gateway":"10.5.1.1","interface":0}]},"runtimeConfig":{"ips":["10.5.1.9"]}}`
	f.Add("c1", "/n", "eth0", "IP=10.5.1.9;K8S_POD_NAME=web-0", []byte(prev))
	f.Add("c1", "/n", "eth0", "IP=fd00::9", []byte(`{"cniVersion":"0.3.1","name":"n","type":"tenure","prevResult":{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.5.1.9/24","interface":7}]}}`))
	f.Add("", "", "", "IP=x", []byte(`{"name":"n","type":"macvlan","prevResult":null}`))
	f.Add("", "", "", "", []byte(`{"name":"n","cniVersion":"9.9.9","prevResult":{"ips":[null],"interfaces":[null]}}`))
	f.Add("", "", "", "", []byte(""))
	f.Fuzz(func(t *testing.T, container, netns, ifName, args string, config []byte) {
		c, err := parse(&api.Request{ContainerID: container, Netns: netns, IfName: ifName, Args: args, Config: config})
		withCode(t, err)
		if c.key.ContainerID != container || c.key.IfName != ifName || !errors.Is(err, conf.ErrDecode) && c.netns != netns {
			t.Errorf("the key is %v", c.key)
		}
		_ = nameOf(config)
		if err != nil {
			return
		}
		for _, held := range []lease.Subnets{v4("10.5.1.0/24"), {V4: prefix("10.5.1.0/24"), V6: prefix("fd00:5::/64")}} {
			asks, err := c.asks(held)
			withCode(t, err)
			for _, a := range asks {
				if a.Want.IsValid() && a.Want.Is4() != a.Subnet.Addr().Is4() {
					t.Errorf("%s is asked for of %s", a.Want, a.Subnet)
				}
			}
		}
		_, err = c.previous()
		withCode(t, err)
	})
}

// withCode: an error has a code of its own, and a text of bounded length.
func withCode(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if e := toCNI(err); e.Code == 0 || e.Code == types.ErrInternal || e.Msg == "" || len(e.Error()) > 12_000 {
		t.Errorf("%T %.300v has code %d and %d bytes", err, err, e.Code, len(e.Error()))
	}
}
