package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// goal is a figure that Tenure wants to keep to, at most.
type goal struct {
	what       string
	most, have float64
}

// printGoals says of each whether it is met.
func printGoals(w io.Writer, goals []goal) error {
	if len(goals) == 0 {
		return nil
	}
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintf(out, "\nGoals\tat most\tmeasured\t\n")
	for _, g := range goals {
		verdict := "met"
		if !(g.have <= g.most) { // nor if it is no number
			verdict = "missed"
		}
		_, _ = fmt.Fprintf(out, "%s\t%g\t%s\t%s\n", g.what, g.most, figure(g.have), verdict)
	}
	return out.Flush()
}
