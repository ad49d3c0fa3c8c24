package ownership

import "fmt"

// judgeOps judges what clients asked for, whatever became of it.
func judgeOps(e Evidence, say report) {
	n := namesIn(e.Prefix)
	for _, o := range e.Ops {
		if o.Key == "" || !o.Put && !o.Delete {
			continue
		}
		name, _ := n.subnet(o.Key)
		bad := func(rule Rule, text string) {
			what := "wrote"
			if o.Delete {
				what = "deleted"
			}
			say(Violation{Rule: rule, Subnet: name, At: o.Call, Text: fmt.Sprintf("%s %s the key, asked for at %s, %s", o.Node, what, stamp(o.Call), text)}, o.Node)
		}
		if o.Put && o.Lease == 0 {
			bad(NoLease, "without a lease")
		}
		if text := o.loose(); text != "" {
			bad(Uncompared, text)
		}
	}
	for _, v := range judgeLinear(e) {
		say(v, "")
	}
}

// loose says what a write lacks in compares; nothing if it is fenced.
func (o Op) loose() string {
	if o.Kind == OpBare {
		return "in no transaction, so nothing is compared"
	}
	var lease, mod bool
	for _, c := range o.Compares {
		switch {
		case c.Target == ByCreate && c.Value == 0 && !o.Delete:
			if !o.Others {
				return "comparing nothing but the key: config, store, owner and settle are to be as they were read"
			}
			return ""
		case c.Target == ByLease && c.Value == 0:
			return "comparing lease 0, which is true of a key that is not there"
		case c.Target == ByLease:
			lease = true
		case c.Target == ByMod:
			mod = true
		}
	}
	switch {
	case !lease && !mod:
		return "comparing nothing of it"
	case !lease:
		return "without comparing its lease"
	case !mod:
		return "without comparing its revision"
	}
	return ""
}
