package lease

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestSizingTable: what the page on the network config says of LeaseTTL follows
// from the bounds that are used.
func TestSizingTable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/network-config.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, ttl := range []time.Duration{5 * time.Second, 15 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 168 * time.Hour} {
		if row := sizing(ttl); !strings.Contains(string(page), row) {
			t.Errorf("the page lacks the row\n%s", row)
		}
	}
}

// sizing is the row of one LeaseTTL.
func sizing(ttl time.Duration) string {
	every, most := Interval(ttl), Deadline(0, ttl)
	const requests = 2 // a keep-alive and a proof
	last := every + every/10
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s to %s | %d |", brief(ttl), brief(every), brief(Margin(ttl)), brief(most-last), brief(most),
		brief(ttl-last), brief(ttl), requests*time.Hour.Milliseconds()/every.Milliseconds()/10*10)
}

// brief writes a duration as a person does, to a tenth of a second.
func brief(d time.Duration) string {
	s := d.Round(100 * time.Millisecond).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
