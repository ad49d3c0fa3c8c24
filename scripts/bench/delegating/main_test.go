package main

import (
	"strings"
	"testing"
)

func TestBridge(t *testing.T) {
	c := config{CNIVersion: "1.0.0", Name: "n", DataDir: "/d", Delegate: map[string]any{"hairpinMode": true}}
	got, err := c.bridge(variables("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.9.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"cniVersion":"1.0.0","hairpinMode":true,"ipam":{"dataDir":"/d/host-local","ranges":[[{"subnet":"10.5.9.0/24"}]],` +
		`"routes":[{"dst":"10.5.0.0/16"}],"type":"host-local"},"mtu":1450,"name":"n","type":"bridge"}`
	if string(got) != want {
		t.Errorf("hands on\n%s\nwant\n%s", got, want)
	}
	if _, err := c.bridge(variables("FLANNEL_NETWORK=10.5.0.0/16")); err == nil || !strings.Contains(err.Error(), "SUBNET") {
		t.Errorf("without a subnet: %v", err)
	}
}
