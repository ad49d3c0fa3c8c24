#!/bin/sh
# Nothing is started that was not: there is no cluster in the sample
# configuration. A daemon that runs is started anew, at no cost for pods.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	systemctl try-restart tenured.service || true
fi
