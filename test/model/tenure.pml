/*
 * Who may have the overlay of a subnet open, and when: the lease protocol of
 * Tenure (daemon/lease) with the fence in the kernel (daemon/fence).
 *
 * Time is a process which all others may run ahead of or behind: a daemon
 * stops between any two of its steps for as long as it likes, and that is a
 * SIGSTOP, a partition, a slow network or a slow etcd. A lease ends at its term
 * or later, never before. A write is answered, or is committed with its answer
 * lost, or is committed after its sender gave up, or never. A read or a
 * keep-alive needs none of this: a late answer is a pause after it.
 *
 * With -DLEADERS a lease ends earlier. A leader of etcd that was stopped, and whose
 * place another has, ends leases by its own clock when it goes on, and renews
 * some for nobody. It knows only those of its own term or before. So a lease of
 * an earlier term is no longer renewed here: it may end as that term's leader
 * had it, or later, whatever the present leader was asked.
 *
 * Asserted are P1, no two nodes have their fences open on one subnet; P2, no
 * write replaces a record that is not the writer's; and P3, a subnet is given
 * away after its fence has closed. -DNO_X takes a guard away, and then one of
 * them must fail. README.md says which line is which code,
 * and what the faults are that the other -D switches add.
 */
#ifndef NODES
#define NODES 2
#endif
#ifndef SUBNETS
#define SUBNETS 1
#endif
#ifndef LEASES
#define LEASES 3                /* that are granted in all: the bound of a run */
#endif

/* Lengths, in moments. A node's clock may make its deadline DRIFT moments
 * longer, which is the worst: one that runs fast is a daemon that pauses. */
#define DRIFT 1
#define SHORT 2                 /* LeaseTTL after a change */
#ifdef TTLCHANGE
#define TTL 3
#else
#define TTL 2
#endif
#ifdef NO_MARGIN
#define MARGIN 0
#else
#define MARGIN 1
#endif
#define DEADLINE(l) (lease[l].ttl - MARGIN + DRIFT)

#define NONE 255                /* no subnet */
#define NOBODY 200              /* owner of the record that a forced release writes */

/* ---- etcd ---- */

typedef Key { bool on; byte lease, made, mod, uid, machine, boot, epoch }
typedef Lease { bool alive; byte left, ttl
#ifdef LEADERS
	bool present            /* granted by the leader that leads */
	byte seen               /* the term that its node read before it asked for it; 0 is unknown */
#endif
}

Key key[SUBNETS];               /* made: the lease it was made under stands for CreateRevision */
Lease lease[LEASES + 1];        /* number 0 is none */
byte granted, rev;
byte age;                       /* of the store: another one after a wipe or a restore */
byte settle;                    /* what is left of its lease; 0: it does not stand */
byte epochs;                    /* Unix seconds, as far as they matter */
#ifdef LEADERS
byte term = 2, changes;         /* of the leader; in a store that was restored it begins anew */
#endif

/* ---- a node's kernel and disk; what its daemon knows is in its process ---- */

byte fence[NODES];              /* how long it stays open; 0 is closed */
byte live[NODES];               /* for which subnet, or NONE */
byte token[NODES];              /* the epoch in its MAC */
byte cycle[NODES];              /* the deadline of the cycle under way, which runs from t0 on */
byte uid[NODES], boot[NODES];
#ifdef LEADERS
byte recent[NODES];             /* how long its last answer is recent */
#endif
byte known[NODES];              /* the age of the store that it knows */
byte dead[NODES];               /* leases whose end it has asked for, a bit each */
bool crash[NODES];              /* its daemon is to start anew */
bool frozen[NODES], wasFrozen[NODES]; /* the whole guest: no clock of it runs */
byte crashes, moves, leaves, releases, losses, freezes, updates, uids;

#ifdef SAME_ADDRESS             /* two machines with one name and address; each hears that the other answers */
#define SILENT false
#else
#define SILENT true
#endif
#define MACHINE (n + 1)

#define OPEN(n) (fence[n] > 0)
#define OPEN_ON(n, s) (fence[n] > 0 && live[n] == s)
#define FORGOT (known[n] != age)

inline shut(n) { fence[n] = 0; live[n] = NONE; token[n] = 0 }

/* ---- writes: as txn.go builds them ---- */

mtype = { ACQUIRE, REASSERT, REBIND, MOVE, UPDATE, LEAVE, REVOKE };
mtype = { YES, NO, UNKNOWN };
typedef Write { mtype op; byte s, lease, old, mod, uid, machine, boot, epoch }
Write late[NODES];              /* the one that its sender has given up, and that may still be committed */

#ifdef NO_ABSENT                /* LeaseValue == 0, which holds for a key without a lease too */
#define ABSENT(s) (key[s].lease == 0)
#else
#define ABSENT(s) (!key[s].on)
#endif
#ifdef NO_SETTLE
#define SETTLED true
#else
#define SETTLED (settle == 0)
#endif
#ifdef NO_LEASE_COMPARE         /* what one remembers is put back as it was */
#define HANGS(s, l) true
#else
#define HANGS(s, l) (key[s].on && key[s].lease == l)
#endif
#ifdef NO_MOD_COMPARE
#define AS_READ(s, m) true
#else
#define AS_READ(s, m) (key[s].mod == m)
#endif

/* P2 */
inline mayWrite(w) {
	assert(!key[w.s].on || key[w.s].lease != 0 && key[w.s].lease == w.old && (key[w.s].uid == w.uid || key[w.s].machine == w.machine))
}

/* P3: when a subnet is given away, the kernel of whoever had it has closed it. */
inline closedBefore(w) {
	for (x : 0 .. NODES - 1) { assert(x + 1 == w.machine || !OPEN_ON(x, w.s) || wasFrozen[x]) }
	x = 0
}

/* A node holds one subnet at a time. (One that lost its memory may have a second
 * key in the store, until its lease ends.) */
inline oneAtATime(w) {
#ifndef CRASHES
	for (x : 0 .. SUBNETS - 1) { assert(x == w.s || !key[x].on || key[x].uid != w.uid || key[x].machine != w.machine) }
	x = 0
#endif
	skip
}

inline put(w) {
	key[w.s].on = 1; key[w.s].lease = w.lease; key[w.s].uid = w.uid; key[w.s].machine = w.machine
	key[w.s].boot = w.boot; key[w.s].epoch = w.epoch; changed(w.s)
}

inline changed(s_) {
#ifdef UPDATES
	rev++; key[s_].mod = rev
#endif
	skip
}

inline forget(s_) {
	key[s_].on = 0; key[s_].lease = 0; key[s_].made = 0; key[s_].mod = 0
	key[s_].uid = 0; key[s_].machine = 0; key[s_].boot = 0; key[s_].epoch = 0
}

#ifdef RESTORE                  /* whether what ends now is not seen again */
#define FINAL (losses > 0)
#else
#define FINAL true
#endif

inline end(l_) {
	lease[l_].alive = 0; lease[l_].left = 0
#ifdef LEADERS
	if :: FINAL -> unknown(l_) :: else fi
#endif
	for (x : 0 .. SUBNETS - 1) { if :: key[x].on && key[x].lease == l_ -> forget(x) :: else fi }
	x = 0
}

inline commit(w, answer) {
	answer = NO
	if
	:: (w.op == ACQUIRE && SETTLED || w.op == REASSERT) && lease[w.lease].alive && ABSENT(w.s) ->
		mayWrite(w); closedBefore(w); oneAtATime(w); put(w); key[w.s].made = w.lease; answer = YES
	:: (w.op == REBIND && SETTLED || w.op == MOVE) && lease[w.lease].alive && HANGS(w.s, w.old) && AS_READ(w.s, w.mod) ->
		mayWrite(w); put(w); answer = YES
	:: w.op == UPDATE && lease[w.lease].alive && HANGS(w.s, w.old) && AS_READ(w.s, w.mod) ->
		mayWrite(w); put(w); answer = YES
	:: w.op == LEAVE && key[w.s].on && HANGS(w.s, w.old) && AS_READ(w.s, w.mod) ->
		mayWrite(w); forget(w.s); answer = YES
	:: w.op == REVOKE -> end(w.lease); answer = YES
	:: else
	fi
}

inline copy(to, w) {
	to.op = w.op; to.s = w.s; to.lease = w.lease; to.old = w.old; to.mod = w.mod
	to.uid = w.uid; to.machine = w.machine; to.boot = w.boot; to.epoch = w.epoch
}

inline drop(w) {
	w.op = 0; w.s = 0; w.lease = 0; w.old = 0; w.mod = 0; w.uid = 0; w.machine = 0; w.boot = 0; w.epoch = 0
}

/* send is one request, and what may become of it. */
inline send(op_, lease_, old_) {
	atomic {
		w.op = op_; w.s = s; w.lease = lease_; w.old = old_; w.mod = mod
		w.uid = uid[n]; w.machine = MACHINE; w.boot = boot[n]; w.epoch = epoch
		if
		:: commit(w, answer); if :: true :: answer = UNKNOWN fi
		:: late[n].op == 0 -> copy(late[n], w); answer = UNKNOWN
		fi
		drop(w)
	}
}

/* ---- the fence ---- */

/* P1. A guest whose every clock stood still may have its fence open for too
 * long. Then the receivers tell: they take frames with one token, the latest
 * that they know. */
inline onlyTenant() {
	for (x : 0 .. NODES - 1) {
		assert(x == n || !OPEN_ON(x, live[n]) || (wasFrozen[x] || wasFrozen[n]) && token[x] != token[n])
	}
	x = 0
}

inline arm(deadline) {
	if :: deadline > 0 -> fence[n] = deadline; live[n] = s; token[n] = epoch; onlyTenant() :: else fi
}

/* cut brings an open fence down to what lease l_ allows, before the key can hang on it. */
inline cut(l_) {
#ifndef NO_CUT
	if :: fence[n] > DEADLINE(l_) -> fence[n] = DEADLINE(l_) :: else fi
#endif
	skip
}

#ifdef NO_COUNTS                /* any proof opens a closed fence, also one from a store that forgot */
#define COUNTS true
#else
#define COUNTS (OPEN(n) || settle == 0 || !FORGOT && met)
#endif

/* ---- whose record it is: decide.go, identity.go ---- */

#ifdef NO_MACHINE               /* the UID alone is believed */
#define HERE(s) true
#else
#define HERE(s) (key[s].boot == boot[n] || key[s].machine == MACHINE && SILENT)
#endif
#ifdef NO_DEAD
#define DEAD(s) false
#else
#define DEAD(s) (dead[n] >> key[s].lease & 1)
#endif
#ifdef NO_SILENCE               /* the name alone is believed, and both have it */
#define OWN_MACHINE(s) true
#else
#define OWN_MACHINE(s) (key[s].machine == MACHINE && SILENT)
#endif
#define MINE(s) (key[s].on && key[s].lease != 0 && key[s].uid == uid[n] && HERE(s) && !DEAD(s))
#define MY_FORMER_SELF(s) (key[s].on && key[s].lease != 0 && key[s].uid != uid[n] && key[s].uid != NOBODY && OWN_MACHINE(s) && (!OPEN(n) || live[n] == s))

/* The number of an ownership is above every one before it. */
#if defined(FREEZE) && !defined(NO_EPOCH)
#define NEXT_EPOCH epochs++; epoch = epochs
#else
#define NEXT_EPOCH epoch = 1
#endif

inline grant(to, ttl_) {
	granted++; to = granted
	lease[to].alive = 1; lease[to].left = ttl_; lease[to].ttl = ttl_
#ifdef LEADERS
	lease[to].present = 1
	if
	:: lease[to].seen = term
	:: changes > 0          /* an earlier one */
	fi
#endif
}

/* ---- who leads ---- */

inline unknown(l_) { lease[l_].seen = 0 }

#ifdef LEADERS
#define RENEWS(l) lease[l].present
#else
#define RENEWS(l) true
#endif
#if defined(LEADERS) && !defined(NO_TERM)
#define IN_TERM(l) (lease[l].seen == term)
#else
#define IN_TERM(l) true
#endif

/* answered: behind a closed fence a settle may have come and gone since the last
 * answer, if that is so long ago. A write that was committed is an answer of when
 * it was sent: cycle[n] counts from there. */
#ifdef LEADERS
#define RECENT (TTL - MARGIN + DRIFT)
#ifdef NO_FRESH
#define OVERSLEPT false
#else
#define OVERSLEPT (!OPEN(n) && recent[n] == 0)
#endif
inline answered() { if :: OVERSLEPT && l != 0 -> unknown(l) :: else fi; recent[n] = RECENT }
inline sent() { cycle[n] = RECENT }
inline kept() { cycle[n] = recent[n] }  /* what commits while the store settles says nothing of that */
inline committed() { if :: OVERSLEPT -> unknown(l) :: else fi; recent[n] = cycle[n]; cycle[n] = 0 }
#else
inline answered() { skip }
inline sent() { skip }
inline kept() { skip }
inline committed() { skip }
#endif

/* proven is what becomes of a proof: whether it moves the fence on. */
inline proven() {
	answered()
#if defined(LEADERS) && !defined(NO_ANEW)       /* a settle that is news says that terms may have begun anew */
	if :: settle > 0 && !met -> unknown(l) :: else fi
#endif
	if :: COUNTS -> met = settle > 0; if :: IN_TERM(l) :: else -> cycle[n] = 0 fi :: else -> cycle[n] = 0 fi
}

proctype Node(byte n) {
	byte s, l, l2, made, mod, epoch, acked, x;
	bool met;               /* settle stood at the last proof too */
	mtype op, answer;
	Write w;
again:	{ skip
start:	atomic { s = 0; l = 0; l2 = 0; made = 0; mod = 0; epoch = 0; acked = 0; x = 0; met = 0; op = 0; answer = 0; cycle[n] = 0 }

	/* one list, and what is made of it */
	atomic {
#if SUBNETS > 1
		select (s : 0 .. SUBNETS - 1)
#endif
		if
		:: MINE(s) ->                                           /* resume: no write */
			l = key[s].lease; made = key[s].made; epoch = key[s].epoch
			if :: live[n] != s -> shut(n) :: else fi
			answered()
			goto held
		:: MY_FORMER_SELF(s) && SETTLED && granted < LEASES ->
			l2 = key[s].lease; mod = key[s].mod; NEXT_EPOCH; answered()
			grant(l, TTL); cut(l)
			goto move
		:: ABSENT(s) && OPEN_ON(n, s) && FORGOT && granted < LEASES ->
			epoch = token[n]; known[n] = age; op = REASSERT; answered()
			grant(l, TTL); cut(l)
			goto acquire
		:: ABSENT(s) && SETTLED && !(OPEN_ON(n, s) && FORGOT) && granted < LEASES ->
			NEXT_EPOCH; known[n] = age; op = ACQUIRE; shut(n); answered()
			grant(l, TTL)
			goto acquire
		fi
	}

acquire: atomic { sent(); send(op, l, 0) }
	if
	:: atomic { answer != NO && key[s].on && key[s].lease == l -> made = key[s].made; committed(); goto held }
	:: atomic { answer == NO || !(key[s].on && key[s].lease == l) -> skip } /* absent proves nothing */
	fi
#ifdef NO_ABORT
	goto start
#endif

undo:	/* lease l ends for certain; that it was asked for is on the disk first */
	dead[n] = dead[n] | 1 << l
	do :: send(REVOKE, l, 0); if :: answer == YES -> break :: else fi od
	goto start

held:	atomic { mod = 0; op = 0; answer = 0; l2 = 0
#ifdef NO_BEFORE                /* the term is read when the lease is there */
		lease[l].seen = term
#endif
	}
	do
	::	/* a cycle: t0, keep-alive, proof, arm */
#ifndef NO_T0
		atomic { cycle[n] = DEADLINE(l) }
#endif
		if
		:: atomic { lease[l].alive || !RENEWS(l) -> if :: RENEWS(l) -> lease[l].left = lease[l].ttl :: else fi }
		:: atomic { !lease[l].alive -> goto lost }
		fi
#ifdef NO_T0
		atomic { cycle[n] = DEADLINE(l) }
#endif
#ifndef NO_PROOF
		if
		:: atomic { HANGS(s, l) && key[s].made == made -> proven() }
		:: atomic { !(HANGS(s, l) && key[s].made == made) -> goto lost }
		fi
#endif
#ifdef NO_ABSOLUTE              /* "so long from now", computed before a pause */
		x = cycle[n]
		atomic { arm(x); cycle[n] = 0 }
#else
		atomic { arm(cycle[n]); cycle[n] = 0 }
#endif
#ifdef UPDATES
	:: atomic { updates < UPDATES && HANGS(s, l) -> updates++; epoch = updates; mod = key[s].mod } /* epoch: what it publishes */
		send(UPDATE, l, l)
		/* what was acknowledged is not undone by an earlier one that comes late */
		atomic { if :: answer == YES -> acked = epoch :: else fi; assert(!HANGS(s, l) || key[s].epoch >= acked); mod = 0; answer = 0 }
#endif
#ifdef TTLCHANGE
	:: atomic { moves == 0 && granted < LEASES && HANGS(s, l) -> moves++; mod = key[s].mod; l2 = l; grant(l, SHORT); cut(l) }
		goto move
#endif
#ifdef LEADERS
	:: atomic { !IN_TERM(l) && granted < LEASES && HANGS(s, l) -> mod = key[s].mod; l2 = l; op = MOVE; grant(l, TTL); cut(l) }
		goto move
#endif
#ifdef LEAVES
	:: atomic { leaves == 0 && HANGS(s, l) -> leaves++; mod = key[s].mod
#ifndef NO_CLOSE_FIRST
			shut(n)
#endif
		}
		send(LEAVE, 0, l)
#ifdef NO_CLOSE_FIRST
		shut(n)
#endif
		goto undo
#endif
	od

	/* the key goes from lease l2 to l; asked again until a read shows where it hangs.
	 * While settle stands only from one leader's lease to another's, of a node whose fence is open. */
move:	atomic { if :: op == MOVE && OPEN(n) -> kept() :: else -> sent() fi; send((op == MOVE && OPEN(n) -> MOVE : REBIND), l, l2) }
	if
	:: atomic { HANGS(s, l) -> made = key[s].made; committed() }
		send(REVOKE, l2, 0)
		goto held
	:: atomic { !HANGS(s, l) && HANGS(s, l2) && AS_READ(s, mod) -> skip }
#ifdef NO_PATIENCE              /* the new lease is revoked though the key may come to hang on it */
		goto undo
#else
		goto move
#endif
	:: atomic { !HANGS(s, l) && !(HANGS(s, l2) && AS_READ(s, mod)) -> shut(n) }
		goto undo
	fi

lost:	atomic { if :: FORGOT && OPEN_ON(n, s) :: else -> shut(n) fi; goto start }

	} unless { atomic { crash[n] -> crash[n] = 0; goto again } }
}

/* ---- what happens by itself, and what goes wrong ---- */

inline loseAll() {
	for (i : 0 .. SUBNETS - 1) { forget(i) }
	for (i : 1 .. LEASES) { lease[i].alive = 0; lease[i].left = 0 }
	age++; settle = TTL; i = 0      /* tenurectl init --after-loss */
#ifdef LEADERS
	term = 1
#endif
}

active proctype World() {
	byte i, x;
	mtype answer;
#ifdef RESTORE
	Key was[SUBNETS]; bool have; byte saw;
#endif
	atomic {
		uids = NODES;
		for (i : 0 .. NODES - 1) {
			boot[i] = 10 * (i + 1); live[i] = NONE
#ifdef CLONE                            /* one state directory, on two machines */
			uid[i] = 1;
#else
			uid[i] = i + 1;
#endif
			run Node(i)
		}
#ifdef RESERVED                         /* by hand: a key without a lease */
		key[0].on = 1; key[0].uid = NOBODY; key[0].machine = NOBODY
#endif
		i = 0
	}
	do
	:: atomic { /* a moment passes */
		for (i : 0 .. NODES - 1) {
			if :: fence[i] > 0 && !frozen[i] -> fence[i]--; if :: fence[i] == 0 -> shut(i) :: else fi :: else fi
			if :: cycle[i] > 0 && !frozen[i] -> cycle[i]-- :: else fi
#ifdef LEADERS
			if :: recent[i] > 0 -> recent[i]-- :: else fi
#endif
		}
		for (i : 1 .. LEASES) { if :: lease[i].left > 0 -> lease[i].left-- :: else fi }
		if :: settle > 0 -> settle-- :: else fi
		i = 0
	}
	:: atomic { /* a lease ends, at its term or later */
		for (i : 1 .. LEASES) { if :: lease[i].alive && lease[i].left == 0 -> end(i) :: true fi }
		i = 0
	}
	:: atomic { /* a late write is committed, or never will be */
		for (i : 0 .. NODES - 1) {
			if
			:: late[i].op != 0 -> commit(late[i], answer); drop(late[i])
			:: late[i].op != 0 -> drop(late[i])
			:: true
			fi
		}
		i = 0; answer = 0
	}
#ifdef LEADERS
	:: atomic { changes < LEADERS -> changes++; term++
		for (i : 1 .. LEASES) {
			lease[i].present = 0
			/* no state more than is needed: it will not be that term again */
			if :: changes == LEADERS && lease[i].seen != term -> unknown(i) :: else fi
		}
		i = 0
	}
#endif
#ifdef CRASHES
	:: atomic { crashes < CRASHES -> crashes++              /* of node 0; they are alike */
		if
		:: skip                                         /* the daemon: the fence stands */
		:: boot[0]++; shut(0)                           /* the machine */
		fi
		if
		:: skip
		:: uids++; uid[0] = uids; dead[0] = 0           /* node.json is lost too */
		fi
		crash[0] = 1
	}
#endif
#ifdef WIPE
	:: atomic { losses == 0 -> losses++; loseAll() }
#endif
#ifdef RESTORE
	:: atomic { losses == 0 && !have && key[0].on -> have = 1
		for (i : 0 .. SUBNETS - 1) { was[i].on = key[i].on; was[i].lease = key[i].lease; was[i].made = key[i].made; was[i].uid = key[i].uid
			was[i].machine = key[i].machine; was[i].boot = key[i].boot; was[i].epoch = key[i].epoch }
		i = 0
	}
	:: atomic { losses == 0 && have -> losses++; loseAll()
		for (i : 0 .. SUBNETS - 1) { key[i].on = was[i].on; key[i].lease = was[i].lease; key[i].made = was[i].made; key[i].uid = was[i].uid
			key[i].machine = was[i].machine; key[i].boot = was[i].boot; key[i].epoch = was[i].epoch
			if :: key[i].on -> lease[key[i].lease].alive = 1; lease[key[i].lease].left = lease[key[i].lease].ttl
#ifdef LEADERS
				lease[key[i].lease].present = 1
#endif
			:: else fi }
#ifdef LEADERS
		for (i : 1 .. LEASES) { if :: !lease[i].alive -> unknown(i) :: else fi }
#endif
		/* who was away since before the backup sees nothing odd */
		for (i : 0 .. NODES - 1) { if :: !OPEN(i) -> known[i] = age :: true fi }
		i = 0
	}
#endif
#ifdef RELEASE
	:: atomic { releases == 0 && key[0].on && key[0].lease != 0 && granted < LEASES -> releases++; granted++
#ifdef NO_TOMBSTONE
		forget(0)
#else
		lease[granted].alive = 1; lease[granted].ttl = lease[key[0].lease].ttl; lease[granted].left = lease[granted].ttl
		key[0].lease = granted; key[0].uid = NOBODY; key[0].machine = NOBODY; changed(0)
#endif
	}
#endif
#ifdef FREEZE
	:: atomic { freezes == 0 -> freezes++; frozen[0] = 1; wasFrozen[0] = 1 }
	:: atomic { frozen[0] -> frozen[0] = 0 }
#endif
	od
}
