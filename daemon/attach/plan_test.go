package attach

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sample() Want {
	return Want{
		Owner:    Owner{"tenure", "tenure", "c1", "eth0"},
		Addrs:    []netip.Prefix{prefix("10.5.34.7/24"), prefix("fd00::7/64")},
		Gateways: []netip.Addr{addr("10.5.34.1"), addr("fd00::1")},
		MTU:      1450,
		Bridge:   "tenure0",
	}
}

// whole is the state that Add leaves for sample.
func whole() State {
	w := sample()
	return State{
		Bridge: 3,
		Host: Link{
			Index: 7, Name: w.HostName(), Kind: kindVeth, Alias: Alias(w.Owner, w.Addrs), MAC: hostMAC("tenure", w.HostName()),
			MTU: 1450, Up: true, Master: 3, Hairpin: true,
		},
		Pod:    Link{Index: 2, Name: "eth0", Kind: kindVeth, MAC: MACFor(addr("10.5.34.7")), MTU: 1450, Up: true},
		Paired: true, Addrs: w.Addrs, Gateways: w.Gateways,
	}
}

func TestPlan(t *testing.T) {
	const host, pod = "host tencuk19uikpn3j: ", "pod eth0: "
	fresh := []string{
		host + "create with peer eth0 in the pod",
		host + `set alias "tenure tenure tenure c1 eth0 10.5.34.7/24 fd00::7/64"`,
		host + "join bridge tenure0",
		host + "set hairpin on",
		host + "set up",
		pod + "set up",
		pod + "add address 10.5.34.7/24",
		pod + "add address fd00::7/64",
		pod + "add default route via 10.5.34.1",
		pod + "add default route via fd00::1",
	}
	tests := []struct {
		name   string
		damage func(*State)
		want   []string
	}{
		{"whole", func(*State) {}, nil},
		{"nothing there", func(s *State) { *s = State{Bridge: 3} }, fresh},
		{
			"orphan", func(s *State) { *s = State{Bridge: 3, Host: s.Host} },
			append([]string{host + "delete the orphan, its peer is not eth0 of this pod"}, fresh...),
		},
		{"no bridge", func(s *State) { s.Bridge, s.Host.Master = 0, 0 }, []string{host + "join bridge tenure0", host + "set hairpin on"}},
		{"another bridge", func(s *State) { s.Host.Master = 4 }, []string{host + "join bridge tenure0", host + "set hairpin on"}},
		{"hairpin", func(s *State) { s.Host.Hairpin = false }, []string{host + "set hairpin on"}},
		{"host down", func(s *State) { s.Host.Up = false }, []string{host + "set up"}},
		{"host mtu", func(s *State) { s.Host.MTU = 1500 }, []string{host + "set mtu 1450, it is 1500"}},
		{"host mac", func(s *State) { s.Host.MAC[5]++ }, nil},
		{
			"alias", func(s *State) { s.Host.Alias = "" },
			[]string{host + `set alias "tenure tenure tenure c1 eth0 10.5.34.7/24 fd00::7/64"`},
		},
		{"pod mtu", func(s *State) { s.Pod.MTU = 1500 }, []string{pod + "set mtu 1450, it is 1500"}},
		{"pod mac", func(s *State) { s.Pod.MAC[5]++ }, []string{pod + "set address 0a:58:0a:05:22:07, it is 0a:58:0a:05:22:08"}},
		{"pod down", func(s *State) { s.Pod.Up = false }, []string{pod + "set up"}},
		{"address", func(s *State) { s.Addrs = s.Addrs[1:] }, []string{pod + "add address 10.5.34.7/24"}},
		{
			"another length", func(s *State) { s.Addrs = []netip.Prefix{prefix("10.5.34.7/32"), prefix("fd00::7/64")} },
			[]string{pod + "add address 10.5.34.7/24"},
		},
		{"route", func(s *State) { s.Gateways = s.Gateways[:1] }, []string{pod + "add default route via fd00::1"}},
		{"more than wanted", func(s *State) {
			s.Addrs = append([]netip.Prefix{prefix("192.0.2.9/32")}, s.Addrs...)
			s.Gateways = append([]netip.Addr{addr("10.5.34.9")}, s.Gateways...)
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			have := whole()
			tt.damage(&have)
			var got []string
			for _, o := range Plan(sample(), have) {
				got = append(got, o.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanWithoutMTUTakesAny(t *testing.T) {
	w, have := sample(), whole()
	w.MTU, have.Host.MTU, have.Pod.MTU = 0, 9000, 1400
	if ops := Plan(w, have); len(ops) != 0 {
		t.Errorf("plan: %v", ops)
	}
}

func TestExplicitMAC(t *testing.T) {
	w, have := sample(), whole()
	w.MAC = [6]byte{2, 0, 0, 0, 0, 9}
	have.Pod.MAC = w.MAC
	if ops := Plan(w, have); len(ops) != 0 {
		t.Errorf("plan: %v", ops)
	}
}

func TestConflict(t *testing.T) {
	tests := []struct {
		name string
		have func(*State)
		want error
	}{
		{"whole", func(*State) {}, nil},
		{"nothing", func(s *State) { *s = State{} }, nil},
		{"whole, alias rewritten", func(s *State) { s.Host.Alias = "uplink" }, nil},
		{"orphan", func(s *State) { s.Paired, s.Pod = false, Link{} }, nil},
		{"orphan without alias", func(s *State) { s.Paired, s.Pod, s.Host.Alias = false, Link{}, "" }, nil},
		{"orphan with another MAC", func(s *State) { s.Paired, s.Pod, s.Host.MAC = false, Link{}, [6]byte{2} }, nil},
		{"pod has the name", func(s *State) { s.Paired, s.Host = false, Link{} }, ErrInterfaceExists},
		{"pod has the name, and an orphan", func(s *State) { s.Paired = false }, ErrInterfaceExists},
		{"host name on a bridge", func(s *State) { s.Paired, s.Pod, s.Host.Kind = false, Link{}, kindBridge }, ErrForeignHost},
		{"host name as another's second name", func(s *State) { s.Paired, s.Pod, s.Host.Name = false, Link{}, "veth1" }, ErrForeignHost},
		{"veth without our marks", func(s *State) { s.Paired, s.Pod, s.Host.Alias, s.Host.MAC = false, Link{}, "", [6]byte{2} }, ErrForeignHost},
		{"veth of another instance", func(s *State) {
			s.Paired, s.Pod, s.Host.MAC = false, Link{}, [6]byte{2}
			s.Host.Alias = strings.Replace(s.Host.Alias, "tenure tenure", "tenure other", 1)
		}, ErrForeignHost},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			have := whole()
			tt.have(&have)
			if err := conflict(sample(), have); !errorsIs(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	if err := sample().validate(); err != nil {
		t.Fatalf("sample: %v", err)
	}
	for name, spoil := range map[string]func(*Want){
		"no network":   func(w *Want) { w.Owner.Network = "" },
		"white space":  func(w *Want) { w.Owner.ContainerID = "a b" },
		"no container": func(w *Want) { w.Owner.ContainerID = "" },
		"huge id":      func(w *Want) { w.Owner.ContainerID = strings.Repeat("a", 300) },
		"long name":    func(w *Want) { w.Owner.IfName = "sixteencharacter" },
		"no address":   func(w *Want) { w.Addrs = nil },
		"no bridge":    func(w *Want) { w.Bridge = "" },
	} {
		w := sample()
		spoil(&w)
		if err := w.validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
