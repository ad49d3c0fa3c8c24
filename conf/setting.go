package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// setFlag sets a flag from a file's value, which must be of the flag's type:
// YAML makes numbers and booleans of unquoted words (1e3, on, 0644), and a
// name must not change by that.
func setFlag(flag *pflag.Flag, raw json.RawMessage) error {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return setList(flag.Value, list, raw)
	}
	if flag.Value.Type() == "bool" {
		var on bool
		if err := json.Unmarshal(raw, &on); err != nil {
			return fmt.Errorf("want true or false, got %s", raw)
		}
		return flag.Value.Set(strconv.FormatBool(on))
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		if flag.Name != "network-config" || raw[0] != '{' {
			return fmt.Errorf("want text, got %s: put it in quotes", raw)
		}
		text = string(raw) // written as YAML instead of JSON in a string
	}
	if err := flag.Value.Set(text); err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	return nil
}

// setList takes a list of texts, or one text with commas as on the command line.
func setList(value pflag.Value, list pflag.SliceValue, raw json.RawMessage) error {
	var texts []string
	if err := json.Unmarshal(raw, &texts); err == nil {
		return list.Replace(texts)
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return errors.New("want a list of texts")
	}
	return value.Set(text)
}
