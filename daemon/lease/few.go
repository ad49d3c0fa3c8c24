package lease

import (
	"fmt"
	"strings"
	"unicode"
)

const (
	// fewMost is how many of many things a text names.
	fewMost = 5
	// wordMost is how much of a text that others wrote is repeated, in bytes.
	wordMost = 160
)

// few names the first of many in a text of bounded length.
func few(all []string, between string) string {
	var named []string
	for _, one := range all[:min(len(all), fewMost)] {
		named = append(named, short(one))
	}
	text := strings.Join(named, between)
	if more := len(all) - len(named); more > 0 {
		text += fmt.Sprintf("%sand %d more", between, more)
	}
	return text
}

// short is a text that others wrote, fit to be shown: at most wordMost bytes of
// it, and nothing that would not be seen, or would move a terminal's cursor.
func short(text string) string {
	cut := len(text) > wordMost
	if cut {
		text = text[:wordMost]
	}
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
	if cut {
		text += "…"
	}
	return text
}
