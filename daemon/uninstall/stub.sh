#!/bin/sh
# Left by "tenurectl uninstall" in place of a CNI plugin for the pods that ran
# then: it answers the DEL of each. Remove it when they are gone.
cat >/dev/null
case "$CNI_COMMAND" in
DEL)
	case "$0" in
	*/tenure) # the interface goes with both its ends; that of tenure-ipam is another plugin's
		if [ -n "$CNI_NETNS" ] && [ -e "$CNI_NETNS" ]; then
			nsenter --net="$CNI_NETNS" ip link del "$CNI_IFNAME" >/dev/null 2>&1
		fi
		;;
	esac
	exit 0
	;;
GC)
	exit 0
	;;
VERSION)
	echo '{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}'
	exit 0
	;;
STATUS)
	echo '{"cniVersion":"1.1.0","code":50,"msg":"Tenure was uninstalled from this node"}'
	exit 1
	;;
esac
echo '{"cniVersion":"1.0.0","code":7,"msg":"Tenure was uninstalled from this node","details":"the network configuration still names it: remove that, or install Tenure again"}'
exit 1
