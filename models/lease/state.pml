/* What Redis, the gateways and the network between them know at one moment, and the units of time. */

/* One unit is a tick. A call takes none, or, when its gateway is cut off meanwhile, one before it is given up. */
#define TICK 1
#ifndef PROV
#define PROV 3
#endif
#ifndef TTL
#define TTL 4
#endif
#ifdef NO_LEARNING
#define LEARN 0
#endif
#ifndef LEARN
#define LEARN 3
#endif

#define NG 2
#define NL 3
#define OWNER(i) ((i) / 2) /* leases 0 and 1 are of gateway 0, lease 2 of gateway 1 */

/* --- Redis */
byte left[NL];   /* what is left of a lease; 0: it is no member of the pool */
bool queued[NL]; /* stands in line */
byte learning;
byte forged;     /* places that a release returned without having had one: must stay 0 */

/* --- each request, as its gateway sees it: acquirer.py, permit.py */
#define NEW 0
#define ASKING 1
#define WAITING 2
#define RUNNING 3 /* the engine works for it */
#define CLOSING 4 /* its release is in the outbox */
#define DONE 5
byte st[NL];
byte sure[NL];   /* how long its lease surely lives yet: counted from before the call that may have made it */
bool again[NL];  /* the call is the second attempt */
bool slow[NL];   /* the acquire was sent before the last step of time */

/* --- each gateway's ticker: one call at a time, ticker.py */
#define IDLE 0
#define TICK_SENT 1
#define TICK_ANSWERED 2
#define RELEASE_SENT 3
#define RELEASE_ANSWERED 4
byte call[NG];
byte facts[NG];  /* leases that the call carries, a bit each */
byte stands[NG]; /* waiters that the call asked about, then those that still stand in line */
byte since[NG];  /* what would be left of a ttl that began when the call was sent */
byte due[NG];    /* until the next tick */
bool late[NG];   /* the call was sent before the last step of time */

/* --- the network */
#define GRANTED 1
#define QUEUED 2
#define REFUSED 3
#define GONE 4
bool asks[NL];     /* an acquire is on its way */
byte answer[NL];   /* its reply is on its way */
bool wake[NL];     /* the message that a waiter was granted is on its way */
byte old_tick[NG]; /* leases of a tick that its sender gave up, still on its way */
bool old_release[NL];

/* --- fate */
bool alive[NG] = true;
bool paused[NG];
bool woken[NG]; /* it was paused a moment ago: what is overdue by then ends before time goes on */
bool cut[NG];
byte faults = FAULTS;
bool strayed; /* a call may have arrived after its sender gave it up, or twice */

#define BIT(i) (1 << (i))
#define acts(g) (alive[g] && !paused[g])
#define mine(i) acts(OWNER(i))
#define live ((left[0] > 0) + (left[1] > 0) + (left[2] > 0))
