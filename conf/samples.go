package conf

import (
	"bytes"
	_ "embed" // the samples are what is shipped and what is tested
	"encoding/json"
)

// sampleSocket is the daemon's default socket as the sample conflist has it.
const sampleSocket = "/run/tenure/tenured.sock"

// The compiler allows embedding in package variables only; nothing writes them.
//
//go:embed samples/10-tenure.conflist
var sampleConflist []byte

//go:embed samples/tenured.yaml
var sampleDaemon []byte

//go:embed tenured.service
var unit []byte

// SampleDaemon returns the shipped configuration file of the daemon.
func SampleDaemon() []byte { return bytes.Clone(sampleDaemon) }

// Unit returns the shipped systemd unit, for a daemon in /usr/local/sbin.
func Unit() []byte { return bytes.Clone(unit) }

// Conflist returns the conflist for a daemon that listens on socket: the
// shipped sample, word for word but for the socket.
func Conflist(socket string) []byte {
	quoted, err := json.Marshal(socket)
	if err != nil { // a string always marshals
		quoted = []byte(`"` + sampleSocket + `"`)
	}
	return bytes.Replace(sampleConflist, []byte(`"`+sampleSocket+`"`), quoted, 1)
}
