#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
case "$1" in
purge) rm -rf /var/lib/tenure /run/tenure ;;
esac
