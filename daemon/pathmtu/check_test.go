package pathmtu

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// line is a way that answers up to a size, and counts what is asked.
type line struct {
	passes int // 0: nothing is answered
	told   int // larger ones than that are said to be too large; 0: never
	dies   int // after so many requests nothing is answered any more; 0: never
	lose   int // so many of the largest are lost by chance
	asked  int
	large  int
	waits  []time.Duration
}

func (l *line) ask(size int, wait time.Duration) (answer, time.Duration) {
	l.asked++
	l.waits = append(l.waits, wait)
	if size == full {
		l.large++
	}
	switch {
	case l.dies > 0 && l.asked > l.dies:
		return silence, 0
	case size == full && l.large <= l.lose:
		return silence, 0
	case size <= l.passes:
		return answered, time.Millisecond
	case l.told > 0 && size > l.told:
		return tooLarge, 0
	}
	return silence, 0
}

const full = 1450

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		line   line
		before int
		want   Verdict
		most   int // requests
	}{
		"well":                          {line{passes: 9000}, 0, Well, 2},
		"nobody answers":                {line{}, 0, Unknown, smallTries},
		"whoever sends is told":         {line{passes: 1250, told: 1250}, 0, Well, 2},
		"one large one lost":            {line{passes: full, lose: 1}, 0, Well, 3},
		"two lost":                      {line{passes: full, lose: 2}, 0, Well, 4},
		"three lost by chance":          {line{passes: full, lose: 3}, 0, Unknown, 16},
		"a hole":                        {line{passes: 1250}, 0, Holed, 24},
		"a hole that is known":          {line{passes: 1250}, 1245, Holed, 7},
		"a known one got deeper":        {line{passes: 900}, 1245, Holed, 27},
		"a known one is filled":         {line{passes: full}, 1245, Well, 2},
		"a known one is silent":         {line{}, 1245, Unknown, smallTries},
		"it goes after the small one":   {line{passes: 1250, dies: 1}, 0, Unknown, 6},
		"it goes while it is looked at": {line{passes: 1250, dies: 8}, 0, Unknown, 25},
	} {
		l := c.line
		got, passes := check(full, c.before, l.ask)
		if got != c.want || l.asked > c.most {
			t.Errorf("%s: verdict %d after %d requests, want %d after %d at most", name, got, l.asked, c.want, c.most)
		}
		if got == Holed && (passes > l.passes || passes < l.passes-fine) {
			t.Errorf("%s: %d pass, want about %d", name, passes, l.passes)
		}
	}
	if v, _ := check(small, 0, (&line{passes: small}).ask); v != Unknown {
		t.Errorf("pods' packets are no larger than the small one: verdict %d", v)
	}
}

// TestCheckWaits: as long as the first answer took, ten times, and not less
// than a fifth of a second: a check of a hole near by is over soon.
func TestCheckWaits(t *testing.T) {
	l := line{passes: 1250}
	check(full, 0, l.ask)
	if l.waits[0] != waitMost || l.waits[1] != waitLeast {
		t.Errorf("waited %s and then %s", l.waits[0], l.waits[1])
	}
}

// TestCheckNeverAccusesAWayThatPasses: whatever is lost by chance, if large
// packets arrive now and then nothing is clamped to a size that says they do not,
// and what is said to pass does.
func TestCheckNeverAccuses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size, passes := rapid.IntRange(small+1, 9000).Draw(t, "size"), rapid.IntRange(0, 9000).Draw(t, "passes")
		before := rapid.IntRange(0, size-1).Draw(t, "before")
		if before <= small {
			before = 0
		}
		v, found := check(size, before, func(s int, _ time.Duration) (answer, time.Duration) {
			if s <= passes && rapid.IntRange(0, 9).Draw(t, "luck") > 0 {
				return answered, time.Millisecond
			}
			return silence, 0
		})
		if v == Holed && (found > passes || found < small || size-found <= fine) {
			t.Fatalf("size %d, of which %d pass: %d are said to", size, passes, found)
		}
		if v == Well && passes < size {
			t.Fatalf("size %d, of which %d pass, is said to be well", size, passes)
		}
	})
}
