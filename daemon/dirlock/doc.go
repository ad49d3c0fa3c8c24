// Package dirlock keeps two daemons, or a daemon and its removal, off the same
// directories. It knows nothing of what lies in them.
package dirlock
