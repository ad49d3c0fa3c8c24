// Package pathmtu finds ways to other nodes that carry small packets and lose
// large ones without a word: a path-MTU black hole, on which connections come
// about and then hang.
//
// It sends echo requests from this node's gateway address to the peer's, so by the
// way that pods' packets take, through the fence: a small one, and one of the size
// that pods may send, which must not be fragmented. A hole is only what
// lets the small one pass before and after and the large one not in three
// tries, while nobody says that it is too large. Who does not answer at all, as
// behind a firewall that drops echo requests, is not judged.
//
// The load is bounded whatever happens: one check at a time, and half a second
// of rest behind each. A way that is well costs two requests a minute; where there
// are more than a hundred of them they are checked less often, so that it is never
// more than 3.4 a second.
//
// It must not import other packages of the daemon.
package pathmtu
