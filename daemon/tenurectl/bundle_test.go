package main

import (
	"strings"
	"testing"
)

// TestWithoutSecrets plants one in every form it may stand in.
func TestWithoutSecrets(t *testing.T) {
	const secret = "hunter2"
	for _, text := range []string{
		"etcd-password: " + secret, "etcd-username: root\npassword = \"" + secret + " and more\"", `{"Password":"` + secret + `","x":1}`, `TENURED_ETCD_PASSWORD=` + secret,
		"etcd-endpoints: [https://root:" + secret + "@192.0.2.2:2379]", `"token": "` + secret + `"`, `level=INFO msg=x token=` + secret, "Authorization: Bearer " + secret,
		"-----BEGIN EC PRIVATE KEY-----\n" + secret + "\n-----END EC PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n" + secret, "client-key-data: " + secret, `secret='` + secret + `'`,
	} {
		got := string(withoutSecrets([]byte(text)))
		if strings.Contains(got, secret) || !strings.Contains(got, "<removed") {
			t.Errorf("%q became %q", text, got)
		}
	}
	for _, text := range []string{
		"etcd-password-file: /etc/tenure/password", "etcd-keyfile: /etc/tenure/etcd-client-key.pem", "etcd-endpoints: [https://192.0.2.2:2379]",
		"token allow 0a:00:00:00:00:01 for 10.5.1.0/24", `"epoch": 1796010608`, "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
	} {
		if got := string(withoutSecrets([]byte(text))); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}
