package dataplane

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// What is repaired again and again is somebody's doing, and no accident.
const (
	fightTimes  = 5
	fightWindow = 10 * time.Minute
)

// Fight says that what we keep in the kernel is undone again and again.
type Fight struct {
	// Kind is the class of what was repaired, by Op.Kind.
	Kind string
	// Times is how many passes repaired it within the last ten minutes, and
	// Since when the first of them was.
	Times int
	Since time.Time
}

// String is the fight in words.
func (f Fight) String() string {
	return fmt.Sprintf("%s were repaired %d times since %s: something on this machine keeps removing or changing them",
		kindWords(f.Kind), f.Times, f.Since.UTC().Format(time.RFC3339))
}

func kindWords(kind string) string {
	words := map[string]string{
		"fence": "the fence's filters", "port": "ports of the bridge", "addr": "addresses", "token": "the fence's tokens",
		"fdb": "forwarding entries", "neigh": "neighbours", "route": "routes", "sysctl": "forwarding switches",
		"rules": "firewall rules", "link": "devices",
	}
	return words[kind]
}

// fights remembers the passes that had to write although nothing new was
// wanted.
type fights struct {
	// settled is what was wanted when a pass found nothing to do.
	settled uint64
	repairs map[string][]time.Time
}

// note takes in a pass for what is wanted by that number.
func (f *fights) note(generation uint64, out outcome, now time.Time) {
	if out.clean {
		f.settled = generation
	}
	if f.settled != generation {
		return
	}
	if f.repairs == nil {
		f.repairs = map[string][]time.Time{}
	}
	for kind := range out.writes {
		f.repairs[kind] = append(f.repairs[kind], now)
	}
}

// standing are the fights of now, by kind.
func (f *fights) standing(now time.Time) []Fight {
	var all []Fight
	for _, kind := range slices.Sorted(maps.Keys(f.repairs)) {
		times := slices.DeleteFunc(f.repairs[kind], func(t time.Time) bool { return now.Sub(t) > fightWindow })
		f.repairs[kind] = times
		if len(times) >= fightTimes {
			all = append(all, Fight{Kind: kind, Times: len(times), Since: times[0]})
		}
	}
	return all
}
