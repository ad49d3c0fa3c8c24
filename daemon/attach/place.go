package attach

// pass tells a test which change comes next; see Attacher.Step.
func (a *Attacher) pass(next Action) {
	switch next {
	case DeleteHost:
		a.at("before the orphan is deleted")
	case CreatePair:
		a.at("before the pair is made")
	case SetAlias:
		a.at("before the alias is set")
	case SetMTU:
		a.at("before the MTU is set")
	case JoinBridge:
		a.at("before the port joins the bridge")
	case SetHairpin:
		a.at("before hairpin is set")
	case SetMAC:
		a.at("before the MAC is set")
	case SetUp:
		a.at("before an end is set up")
	case AddAddr:
		a.at("before the address is added")
	case AddRoute:
		a.at("before the route is added")
	}
}

func (a *Attacher) at(where string) {
	if a.Step != nil {
		a.Step(where)
	}
}
