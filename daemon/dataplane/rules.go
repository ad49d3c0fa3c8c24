package dataplane

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Chain is an iptables chain.
type Chain struct{ Table, Name string }

// String prints c as table/name.
func (c Chain) String() string { return c.Table + "/" + c.Name }

// Rules are the iptables rules that are ours. Rule texts are what
// iptables-save prints behind "-A CHAIN ".
type Rules struct {
	// Chains holds those of our chains that exist, each with all its rules in
	// their order, whoever wrote them.
	Chains map[Chain][]string
	// Jumps holds, for each base chain, the rules that jump to our chains.
	Jumps map[Chain][]string
	// RandomFully says that iptables knows MASQUERADE --random-fully.
	RandomFully bool
	// NoTrackFault says why the outer packets cannot be kept out of conntrack
	// on this kernel; "" when nothing is known against it.
	NoTrackFault string
	// Mixed says which rules stand in the other kind of iptables, legacy or
	// nft; "" when none do.
	Mixed string
}

// Clone returns a deep copy.
func (r Rules) Clone() Rules {
	r.Chains = cloneLists(r.Chains)
	r.Jumps = cloneLists(r.Jumps)
	return r
}

func cloneRules(r *Rules) *Rules {
	if r == nil {
		return nil
	}
	c := r.Clone()
	return &c
}

func cloneLists(m map[Chain][]string) map[Chain][]string {
	m = maps.Clone(m)
	for k, v := range m {
		m[k] = slices.Clone(v)
	}
	return m
}

// TableEdit is a change of one iptables table, made as a whole.
type TableEdit struct {
	Table string
	// Fill creates or empties chains and gives them these rules.
	Fill []ChainRules
	// Unjump removes one rule each from a base chain.
	Unjump []ChainRule
	// Jump appends one rule each to a base chain.
	Jump []ChainRule
	// Drop removes chains.
	Drop []string
}

// ChainRules is a chain with its rules in order.
type ChainRules struct {
	Chain string
	Rules []string
}

// ChainRule is one rule of a chain.
type ChainRule struct{ Chain, Rule string }

// String names what changes.
func (e TableEdit) String() string {
	var parts []string
	for _, c := range e.Fill {
		parts = append(parts, fmt.Sprintf("fill %s with %d rules", c.Chain, len(c.Rules)))
	}
	for _, r := range e.Unjump {
		parts = append(parts, fmt.Sprintf("drop from %s %q", r.Chain, r.Rule))
	}
	for _, r := range e.Jump {
		parts = append(parts, fmt.Sprintf("append to %s %q", r.Chain, r.Rule))
	}
	for _, c := range e.Drop {
		parts = append(parts, "drop "+c)
	}
	return e.Table + ": " + strings.Join(parts, ", ")
}

// Restore is the edit as input for iptables-restore --noflush.
func (e TableEdit) Restore() string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", e.Table)
	for _, c := range e.Fill {
		fmt.Fprintf(&b, ":%s - [0:0]\n", c.Chain)
	}
	for _, c := range e.Fill {
		for _, rule := range c.Rules {
			fmt.Fprintf(&b, "-A %s %s\n", c.Chain, rule)
		}
	}
	for _, r := range e.Unjump {
		fmt.Fprintf(&b, "-D %s %s\n", r.Chain, r.Rule)
	}
	for _, r := range e.Jump {
		fmt.Fprintf(&b, "-A %s %s\n", r.Chain, r.Rule)
	}
	for _, c := range e.Drop {
		fmt.Fprintf(&b, "-F %s\n-X %s\n", c, c)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// ourChain is one chain of the instance and the base chains that jump to it.
type ourChain struct {
	chain Chain
	bases []string
}

// ourChains are all chains an instance can have. The order is that of the
// edits: the table that a kernel may not be able to fill comes first, so that
// when it fails nothing of the others is in yet.
func ourChains(instance string) []ourChain {
	prefix := strings.ToUpper(instance) + "-"
	return []ourChain{
		{Chain{"raw", prefix + "RAW"}, []string{"PREROUTING", "OUTPUT"}},
		{Chain{"mangle", prefix + "MSS"}, []string{"FORWARD"}},
		{Chain{"nat", prefix + "MASQ"}, []string{"POSTROUTING"}},
		{Chain{"filter", prefix + "FWD"}, []string{"FORWARD"}},
	}
}

// rulesWish is all of a Desired that its rules depend on.
type rulesWish struct {
	families, asFound                    Families
	name                                 string
	networks                             string
	ports                                string // of the overlays
	held                                 bool
	clamp                                int
	masq, masqRandomFully, forwardAccept bool
}

func (d Desired) rulesWish() rulesWish {
	w := rulesWish{
		families: d.families(), asFound: d.AsFound, name: d.Name, networks: fmt.Sprint(d.Networks, d.Outside),
		masq: d.Masq, held: d.Held(), clamp: d.Clamp, masqRandomFully: d.MasqRandomFully, forwardAccept: d.ForwardAccept,
	}
	for _, v := range d.Overlays {
		w.ports += fmt.Sprint(v.Local.Is6(), v.Port, ";")
	}
	return w
}

// podNetworks are where pods of this node, or of others, have their addresses
// of a family.
func (d Desired) podNetworks(six bool) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range slices.Concat(d.Networks, d.Outside) {
		if p.Addr().Is6() == six {
			all = append(all, p)
		}
	}
	return all
}

// overlay is the vxlan device of a family, nil if there is none.
func (d Desired) overlay(six bool) *Vxlan {
	for i, v := range d.Overlays {
		if v.Local.Is6() == six {
			return &d.Overlays[i]
		}
	}
	return nil
}

// wantChains are the rules of the chains that shall exist in a family. Rules
// that only let traffic fall back to the base chain use RETURN, never ACCEPT,
// so that those of others behind them still see it.
//
// Every packet comes through the filter and the raw table, and only the first
// of a connection through nat. So those two have no comments: each is a match
// of its own that has to be called.
func wantChains(want Desired, six bool, have Rules) map[string][]string {
	out := map[string][]string{}
	for _, from := range want.podNetworks(six) {
		net := from.String()
		if want.Masq {
			out["nat"] = append(out["nat"], masqRules(from, want, have)...)
		}
		if want.Clamp > 0 {
			out["mangle"] = append(out["mangle"], clampRules(from, want.Clamp)...)
		}
		if want.ForwardAccept {
			out["filter"] = append(out["filter"], "-s "+net+" -j ACCEPT", "-d "+net+" -j ACCEPT")
		}
	}
	if want.overlay(six) != nil && have.NoTrackFault == "" {
		out["raw"] = []string{"-j CT --notrack"}
	}
	return out
}

// jumpTo is the rule of a base chain that leads to ours. Only the outer packets
// of the overlay take the one of the raw table, which all others leave there.
func jumpTo(c Chain, want Desired, six bool) string {
	v := want.overlay(six)
	switch {
	case c.Table == "nat":
		return rule("", "pod network", c.Name)
	case c.Table == "raw" && v != nil:
		return fmt.Sprintf("-p udp -m udp --dport %d -j %s", v.Port, c.Name)
	}
	return "-j " + c.Name
}

// tcpOverhead is what IP and TCP headers without options take of a packet, in
// bytes.
func tcpOverhead(six bool) int {
	if six {
		return 60
	}
	return 40
}

// clampRules lower the segments that both ends of a pod's connection may send:
// to what the routes take, both ways, and to what fits the largest packet. The
// latter is for pods that have a larger MTU than pods get now, and for ways that
// lose more than that in silence, which no route knows of. Neither raises any.
func clampRules(net netip.Prefix, largest int) []string {
	var rules []string
	for _, match := range []string{"-s " + net.String(), "-d " + net.String()} {
		match += " -p tcp -m tcp --tcp-flags SYN,RST SYN"
		rules = append(rules,
			rule(match, "segments as the route takes", "TCPMSS --clamp-mss-to-pmtu"),
			rule(match, "segments as pods get them", fmt.Sprintf("TCPMSS --set-mss %d", max(largest-tcpOverhead(net.Addr().Is6()), 1))))
	}
	return rules
}

// masqRules masquerade what leaves the pod networks from one of them.
func masqRules(from netip.Prefix, want Desired, have Rules) []string {
	net, multicast := from.String(), "224.0.0.0/4"
	if from.Addr().Is6() {
		multicast = "ff00::/8"
	}
	var rules []string
	for _, to := range want.podNetworks(from.Addr().Is6()) {
		rules = append(rules, rule("-s "+net+" -d "+to.String(), "pods keep their address among themselves", "RETURN"))
	}
	masq := rule("-s "+net, "what leaves the pod network", "MASQUERADE")
	if want.MasqRandomFully && have.RandomFully {
		masq += " --random-fully"
	}
	return append(rules, rule("-s "+net+" -d "+multicast, "multicast keeps its source", "RETURN"), masq)
}

// rule writes a rule in the order and spelling of iptables-save.
func rule(match, comment, target string) string {
	text := fmt.Sprintf(`-m comment --comment %q -j %s`, comment, target)
	if match == "" {
		return text
	}
	return match + " " + text
}

// planRules compares chains as ordered lists and jumps as exactly one per
// base chain. A jump stands wherever it is found: it is appended, so chains
// that were ahead of it stay ahead, and moving it would start a fight with
// others who also want to be last. One of another wording, as an earlier
// version or another port of the overlay has it, gives way to a new one.
func planRules(want Desired, six bool, have Rules) []TableEdit {
	var edits []TableEdit
	rules := wantChains(want, six, have)
	for _, c := range ourChains(want.Name) {
		if c.chain.Table == "raw" && want.overlay(six) == nil && (!want.Held() || want.AsFound.of(six) || want.Uplink == "" && len(want.podNetworks(six)) > 0) {
			continue // an overlay that stands from before may need it
		}
		wanted, on := rules[c.chain.Table]
		edit := planChain(c, jumpTo(c.chain, want, six), wanted, on, have)
		if edit.changes() {
			edits = append(edits, edit)
		}
	}
	return edits
}

func (e TableEdit) changes() bool {
	return len(e.Fill)+len(e.Unjump)+len(e.Jump)+len(e.Drop) > 0
}

func planChain(c ourChain, jump string, wanted []string, on bool, have Rules) TableEdit {
	edit := TableEdit{Table: c.chain.Table}
	found, exists := have.Chains[c.chain]
	switch {
	case on && (!exists || !slices.EqualFunc(wanted, found, sameRule)):
		edit.Fill = []ChainRules{{c.chain.Name, wanted}}
	case !on && exists:
		edit.Drop = []string{c.chain.Name}
	}
	for _, base := range c.bases {
		missing := on
		for _, r := range have.Jumps[Chain{c.chain.Table, base}] {
			if ruleTarget(r) != c.chain.Name {
				continue
			}
			if missing && sameRule(r, jump) {
				missing = false
				continue
			}
			edit.Unjump = append(edit.Unjump, ChainRule{base, r})
		}
		if missing {
			edit.Jump = append(edit.Jump, ChainRule{base, jump})
		}
	}
	return edit
}

// sameRule compares two rules in the spelling of iptables-save, whatever its
// version puts into quotes and whether or not it names the implicit match of
// a protocol.
func sameRule(a, b string) bool {
	return a == b || slices.Equal(canonical(a), canonical(b))
}

func canonical(rule string) []string {
	words := splitRule(rule)
	out := make([]string, 0, len(words))
	protocol := ""
	for i := 0; i < len(words); i++ {
		switch {
		case words[i] == "-p" && i+1 < len(words):
			protocol = words[i+1]
		case words[i] == "-m" && i+1 < len(words) && words[i+1] == protocol:
			i++
			continue
		}
		out = append(out, words[i])
	}
	return out
}

// splitRule splits at blanks outside of double quotes; a backslash inside
// them takes the next byte as it is.
func splitRule(rule string) []string {
	var words []string
	var word strings.Builder
	quoted, inWord := false, false
	for i := 0; i < len(rule); i++ {
		switch ch := rule[i]; {
		case ch == '"':
			quoted, inWord = !quoted, true
		case ch == '\\' && quoted && i+1 < len(rule):
			i++
			word.WriteByte(rule[i])
		case ch == ' ' && !quoted:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(ch)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// ruleTarget is the chain or target that a rule jumps or goes to.
func ruleTarget(rule string) string {
	words := splitRule(rule)
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "-j", "-g", "--jump", "--goto":
			return words[i+1]
		}
	}
	return ""
}

// parseRules picks what is ours from the output of iptables-save.
func parseRules(instance, saved string) Rules {
	out := Rules{Chains: map[Chain][]string{}, Jumps: map[Chain][]string{}}
	chains := ourChains(instance)
	isOurs := func(c Chain) bool {
		return slices.ContainsFunc(chains, func(o ourChain) bool { return o.chain == c })
	}
	isBase := func(base Chain, target string) bool {
		return slices.ContainsFunc(chains, func(o ourChain) bool {
			return o.chain == Chain{base.Table, target} && slices.Contains(o.bases, base.Name)
		})
	}
	table := ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			if c := (Chain{table, name}); isOurs(c) {
				out.Chains[c] = nil
			}
		case strings.HasPrefix(line, "-A "):
			name, text, _ := strings.Cut(line[3:], " ")
			c := Chain{table, name}
			if isOurs(c) {
				out.Chains[c] = append(out.Chains[c], text)
			} else if isBase(c, ruleTarget(text)) {
				out.Jumps[c] = append(out.Jumps[c], text)
			}
		}
	}
	return out
}

// otherKind is what to say of rules that the other kind of iptables has. Its
// -save program prints them; used is the kind that the host's iptables is of.
func otherKind(saved, used, other string) string {
	rules := 0
	for line := range strings.Lines(saved) {
		if strings.HasPrefix(line, "-A ") {
			rules++
		}
	}
	if rules == 0 {
		return ""
	}
	return fmt.Sprintf("iptables is of the kind %s here, and %s has rules too (%d, as %s-save shows): packets pass both, and a drop in one is not seen in the other", used, other, rules, other)
}
