package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// links are the places that a page in Markdown leads to, as written.
func links(text string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// anchors are the names of a page's headings, as GitHub makes them.
func anchors(text string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}

// TestPagesAreFound: README leads to every page, and no link leads nowhere.
func TestPagesAreFound(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) < 5 {
		t.Fatalf("pages: %q, %v", pages, err)
	}
	fromReadme := links(readFile(t, "README.md"))
	for _, page := range pages {
		if name := "docs/" + filepath.Base(page); !slices.Contains(fromReadme, name) {
			t.Errorf("README.md does not lead to %s", name)
		}
	}
	top, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, top...) {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links(string(b)) {
			if lack := deadLink(page, link); lack != "" {
				t.Errorf("%s: %s: %s", page, link, lack)
			}
		}
	}
	for link, dead := range map[string]bool{"README.md": false, "README.md#codes": false, "README.md#none": true, "none.md": true, "https://x": false, "#codes": false} {
		if got := deadLink(filepath.Join(root, "README.md"), link); (got != "") != dead {
			t.Errorf("%s is judged %q", link, got)
		}
	}
}

// deadLink says what is wrong with a link of a page; "" is nothing. What is on
// the network is not asked.
func deadLink(page, link string) string {
	if strings.Contains(link, "://") {
		return ""
	}
	to, anchor, _ := strings.Cut(link, "#")
	path := page
	if to != "" {
		path = filepath.Join(filepath.Dir(page), to)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
			return ""
		}
		return err.Error()
	}
	if anchor != "" && !slices.Contains(anchors(string(b)), anchor) {
		return "no such heading"
	}
	return ""
}
