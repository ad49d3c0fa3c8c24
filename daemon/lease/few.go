package lease

import (
	"fmt"
	"strings"
	"unicode"
)

// fewMost is how many of many things a text names, and oneMost how much of each,
// in bytes.
const (
	fewMost = 5
	oneMost = 320
)

// few names the first of many in a text of bounded length.
func few(all []string, between string) string {
	var named []string
	for _, one := range all[:min(len(all), fewMost)] {
		named = append(named, short(one, oneMost))
	}
	if more := len(all) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return strings.Join(named, between)
}

// short is a text that others wrote, fit to be shown: so many bytes of it at
// most, and nothing that would not be seen or would move a terminal's cursor.
func short(text string, most int) string {
	end := ""
	if len(text) > most {
		text, end = text[:most], "…"
	}
	const instead = unicode.ReplacementChar
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return instead
		}
		return r
	}, strings.ToValidUTF8(text, string(instead))) + end
}
