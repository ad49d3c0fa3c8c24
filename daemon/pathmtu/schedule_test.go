package pathmtu

import (
	"net/netip"
	"testing"
	"time"
)

func waysTo(count int) []Way {
	var all []Way
	to := netip.MustParseAddr("10.5.0.1")
	for range count {
		all = append(all, Way{From: netip.MustParseAddr("10.4.0.1"), To: to, Size: full})
		to = to.Next()
	}
	return all
}

// TestLoad: with a thousand peers of any kind, over an hour, requests per
// second stay within what is promised, and every peer is looked at.
func TestLoad(t *testing.T) {
	for name, c := range map[string]struct {
		line     line
		perHour  float64 // requests per second on average, at most
		perCheck int
	}{
		"well":   {line{passes: full}, 3.4, 2},
		"silent": {line{}, 3.4, 2},
		"holes":  {line{passes: 1250}, 10, 24},
	} {
		ways, seen := waysTo(1000), map[Way]known{}
		began := time.Unix(1796000000, 0)
		now, requests := began, 0
		for now.Sub(began) < time.Hour {
			w, ok := next(ways, seen, now)
			if !ok {
				now = now.Add(idle)
				continue
			}
			l := c.line
			v, passes := check(w.Size, seen[w].passes, func(size int, wait time.Duration) (answer, time.Duration) {
				a, took := l.ask(size, wait)
				if a == silence {
					took = wait
				}
				now = now.Add(took)
				return a, took
			})
			if l.asked > c.perCheck {
				t.Fatalf("%s: %d requests for one check", name, l.asked)
			}
			requests += l.asked
			seen[w] = seen[w].after(v, passes, now, len(ways))
			now = now.Add(rest)
		}
		if rate := float64(requests) / time.Hour.Seconds(); rate > c.perHour {
			t.Errorf("%s: %.1f requests a second", name, rate)
		}
		for _, w := range ways {
			if _, ok := seen[w]; !ok {
				t.Fatalf("%s: %s was never looked at", name, w.To)
			}
		}
	}
}

func TestNext(t *testing.T) {
	ways, now := waysTo(3), time.Unix(1796000000, 0)
	seen := map[Way]known{}
	if w, ok := next(nil, seen, now); ok {
		t.Errorf("without ways: %v", w)
	}
	for i, w := range ways {
		if got, ok := next(ways, seen, now); !ok || got != w {
			t.Fatalf("way %d: %v, %t", i, got, ok)
		}
		seen[w] = seen[w].after([]Verdict{Well, Holed, Unknown}[i], 1250, now, 3)
	}
	if w, ok := next(ways, seen, now.Add(firstPatience-1)); ok {
		t.Errorf("nothing is due: %v", w)
	}
	for after, want := range map[time.Duration]Way{firstPatience: ways[2], again: ways[2], minute: ways[2]} {
		if w, ok := next(ways, seen, now.Add(after)); !ok || w != want {
			t.Errorf("after %s: %v, %t; want the one due first, %v", after, w, ok, want)
		}
	}
	seen[ways[2]] = seen[ways[2]].after(Unknown, 0, now, 3)
	if k := seen[ways[2]]; k.patience != 2*firstPatience {
		t.Errorf("asked again after %s, want twice as long as before", k.patience)
	}
	for range 20 {
		seen[ways[2]] = seen[ways[2]].after(Unknown, 0, now, 3)
	}
	if k := seen[ways[2]]; k.patience != minute {
		t.Errorf("asked again after %s, want %s at most", k.patience, minute)
	}
	if k := seen[ways[1]].after(Unknown, 0, now, 3); k.verdict != Holed || k.passes != 1250 || !k.due.Equal(now.Add(again)) {
		t.Errorf("silence takes a hole back: %+v", k)
	}
	if k := seen[ways[1]].after(Well, 0, now, 3); k.verdict != Well || k.passes != 0 {
		t.Errorf("a hole that is filled is still one: %+v", k)
	}
	larger := ways[1]
	larger.Size++
	if got := forget([]Way{ways[0], larger}, seen); len(got) != 1 || got[ways[0]] != seen[ways[0]] {
		t.Errorf("known of ways that are no more, or have another size: %v", got)
	}
}
