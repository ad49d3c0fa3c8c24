package fakekernel

import (
	"fmt"
	"os"
	"slices"

	"github.com/tenure-cni/tenure/daemon/dataplane"
)

// setRules edits all tables or, when a rule or chain is missing, none.
func (k *Kernel) setRules(c dataplane.SetRules) error {
	of := &k.state.Rules
	if c.Six {
		of = &k.state.Rules6
	}
	rules := (*of).Clone()
	for _, t := range c.Tables {
		if err := editTable(rules, t); err != nil {
			return err
		}
	}
	*of = &rules
	return nil
}

func editTable(rules dataplane.Rules, t dataplane.TableEdit) error {
	for _, c := range t.Fill {
		rules.Chains[dataplane.Chain{Table: t.Table, Name: c.Chain}] = slices.Clone(c.Rules)
	}
	for _, r := range t.Unjump {
		base := dataplane.Chain{Table: t.Table, Name: r.Chain}
		i := slices.Index(rules.Jumps[base], r.Rule)
		if i < 0 {
			return fmt.Errorf("rule %q of %s: %w", r.Rule, base, os.ErrNotExist)
		}
		rules.Jumps[base] = slices.Delete(rules.Jumps[base], i, i+1)
	}
	for _, r := range t.Jump {
		base := dataplane.Chain{Table: t.Table, Name: r.Chain}
		rules.Jumps[base] = append(rules.Jumps[base], r.Rule)
	}
	for _, name := range t.Drop {
		chain := dataplane.Chain{Table: t.Table, Name: name}
		if _, ok := rules.Chains[chain]; !ok {
			return fmt.Errorf("chain %s: %w", chain, os.ErrNotExist)
		}
		delete(rules.Chains, chain)
	}
	return nil
}
