package services

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"text/template"

	"github.com/tenure-cni/tenure/test/cluster"
	"github.com/tenure-cni/tenure/test/lab"
)

// service is one port of a service with one pod behind it, for TCP and UDP.
type service struct {
	Name      string
	ClusterIP netip.Addr
	Port      int
	// NodePort leads there from every node; LocalPort, as the traffic policy
	// "Local" has it, only from the pod's own, and keeps the client's address.
	NodePort, LocalPort int
	Pod                 netip.Addr
	// PodPort is where the pod listens.
	PodPort int
	// Here says that the pod is on the node that the rules are for.
	Here bool
}

// mode is a way in which rules of a proxy are written.
type mode struct {
	name  string
	rules *template.Template
	// load are the words of the program that takes them from a file.
	load []string
}

func modes() []mode {
	return []mode{
		{"iptables", template.Must(template.New("iptables").Parse(iptablesRules)), []string{"iptables-restore", "--noflush", "--wait", "5"}},
		{"nftables", template.Must(template.New("nftables").Parse(nftablesRules)), []string{"nft", "-f"}},
	}
}

// proxy writes the rules for all services on a node.
func (m mode) proxy(ctx context.Context, t *testing.T, n *lab.Node, services ...service) {
	t.Helper()
	var b bytes.Buffer
	err := m.rules.Execute(&b, map[string]any{"Network": cluster.PodNetwork, "Services": services, "Protocols": []string{"tcp", "udp"}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), n.Host+".rules")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	argv := append(m.load[1:len(m.load):len(m.load)], file)
	if _, err := n.Exec(ctx, m.load[0], argv...); err != nil {
		t.Fatal(fmt.Errorf("%w\n%s", err, &b))
	}
}

// iptablesRules have the shape of kube-proxy's: what comes from outside of the
// pod network, and what comes back to its own sender, is marked on its way in
// and masqueraded on its way out.
const iptablesRules = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
{{- range .Services}}
:KUBE-SVC-{{.Name}} - [0:0]
:KUBE-EXT-{{.Name}} - [0:0]
:KUBE-SEP-{{.Name}} - [0:0]
{{- end}}
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
{{- range $s := .Services}}{{range $p := $.Protocols}}
-A KUBE-SERVICES -d {{$s.ClusterIP}}/32 -p {{$p}} --dport {{$s.Port}} -j KUBE-SVC-{{$s.Name}}
-A KUBE-NODEPORTS -p {{$p}} --dport {{$s.NodePort}} -j KUBE-EXT-{{$s.Name}}
-A KUBE-SVC-{{$s.Name}} ! -s {{$.Network}} -d {{$s.ClusterIP}}/32 -p {{$p}} --dport {{$s.Port}} -j KUBE-MARK-MASQ
-A KUBE-SEP-{{$s.Name}} -p {{$p}} -j DNAT --to-destination {{$s.Pod}}:{{$s.PodPort}}
{{- if $s.Here}}
-A KUBE-NODEPORTS -p {{$p}} --dport {{$s.LocalPort}} -j KUBE-SEP-{{$s.Name}}
{{- end}}{{end}}
-A KUBE-EXT-{{.Name}} -j KUBE-MARK-MASQ
-A KUBE-EXT-{{.Name}} -j KUBE-SVC-{{.Name}}
-A KUBE-SVC-{{.Name}} -m statistic --mode random --probability 0.5 -j KUBE-SEP-{{.Name}}
-A KUBE-SVC-{{.Name}} -j KUBE-SEP-{{.Name}}
-I KUBE-SEP-{{.Name}} -s {{.Pod}}/32 -j KUBE-MARK-MASQ
{{- end}}
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
`

// nftablesRules do the same in a table of their own.
const nftablesRules = `table ip kube-proxy {
	chain mark-for-masquerade {
		meta mark set meta mark or 0x4000
	}
{{- range $s := .Services}}
	chain endpoint-{{.Name}} {
		ip saddr {{.Pod}} jump mark-for-masquerade
		meta l4proto { tcp, udp } dnat to {{.Pod}}:{{.PodPort}}
	}
	chain service-{{.Name}} {
		ip daddr {{.ClusterIP}} ip saddr != {{$.Network}} jump mark-for-masquerade
		numgen random mod 2 vmap { 0 : goto endpoint-{{.Name}}, 1 : goto endpoint-{{.Name}} }
	}
	chain external-{{.Name}} {
		jump mark-for-masquerade
		goto service-{{.Name}}
	}
{{- end}}
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { {{- range $s := .Services}}{{range $.Protocols}}
			{{$s.ClusterIP}} . {{.}} . {{$s.Port}} : goto service-{{$s.Name}},{{end}}{{end}}
		}
	}
	map service-nodeports {
		type inet_proto . inet_service : verdict
		elements = { {{- range $s := .Services}}{{range $.Protocols}}
			{{.}} . {{$s.NodePort}} : goto external-{{$s.Name}},
			{{- if $s.Here}}
			{{.}} . {{$s.LocalPort}} : goto endpoint-{{$s.Name}},{{end}}{{end}}{{end}}
		}
	}
	chain services {
		ip daddr . meta l4proto . th dport vmap @service-ips
		fib daddr type local meta l4proto . th dport vmap @service-nodeports
	}
	chain nat-prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		jump services
	}
	chain nat-output {
		type nat hook output priority -100; policy accept;
		jump services
	}
	chain nat-postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark and 0x4000 == 0 return
		meta mark set meta mark xor 0x4000
		masquerade fully-random
	}
}
`
