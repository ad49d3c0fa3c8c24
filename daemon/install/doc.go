// Package install puts Tenure's files on a host and takes them away: programs,
// unit and first configuration. The CNI configuration is not among them: the
// daemon writes it once there is a lease (--cni-conf-file).
//
// It promises: whoever opens one of the files, or executes it, at any time has
// the old one or the new one, complete; what fails leaves the old one; nothing
// of an installation that was killed is in the way of the next. Two at once
// wait for one another.
//
// It knows files only, nothing of kernel, daemon or etcd.
package install
