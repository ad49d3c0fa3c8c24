#!/bin/sh
# A removal, not an upgrade, takes the node out of the network first; with pods
# on it that is refused, and so is the removal: their DEL needs the plugin.
set -e
case "$1" in
remove | 0) tenurectl uninstall --keep-programs ;;
esac
