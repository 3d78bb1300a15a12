/*
  lease.pml: the life of leases between gateways and one Redis, for spin. README.md beside this file says what
  is modelled, which promise each assertion is, and how to run it.

  Time is discrete. What the code keeps as a moment (an expiry, a deadline) is here what is left of it, so
  that the number of states is finite. Time may not pass while a process that is able to act has something to
  do that is due: that is how "a tick every TICK" and "the stream ends by its deadline" are said.

  Options (-D): LIMIT, FAULTS (how many may happen), STOP (lost_lease = "stop"; otherwise "run_on"), ONE_EACH
  (one lease per gateway), NO_EXCUSE (a gateway out of reach during the learning window is held to the limit,
  too), LIVENESS, and the planted mistakes that README.md lists.
*/

#ifndef LIMIT
#define LIMIT 1
#endif
#ifndef FAULTS
#define FAULTS 0
#endif

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

/* --- what nobody in the system knows, for the assertions */
bool lapsed[NL]; /* its lease ran out while it ran */
bool flushed;
bool apart[NG];  /* since Redis lost its data it could not be reached at some time */

#define BIT(i) (1 << (i))
#define acts(g) (alive[g] && !paused[g])
#define mine(i) acts(OWNER(i))
#define live ((left[0] > 0) + (left[1] > 0) + (left[2] > 0))
#define running ((st[0] == RUNNING) + (st[1] == RUNNING) + (st[2] == RUNNING))
#define counts(i) (st[i] == RUNNING && !lapsed[i] && !unheard(i))
#ifdef NO_EXCUSE
#define unheard(i) false
#else
#define unheard(i) (flushed && apart[OWNER(i)] && LEARN < TTL)
#endif
#define frozen(i) (paused[OWNER(i)] || (woken[OWNER(i)] && sure[i] == 0))
#define can_stop(i) (st[i] == RUNNING && !frozen(i) && !unheard(i))
#define told(i) (!flushed || apart[OWNER(i)] || st[i] != RUNNING || left[i] > 0)

/* Whenever a stream began or time went on: nothing else adds to what is counted. */
inline nobody_exceeds() {
  if
  :: FAULTS == 0 -> assert(running <= LIMIT)
  :: FAULTS > 0 ->
#ifdef STOP
    assert(can_stop(0) + can_stop(1) + can_stop(2) <= LIMIT)
#else
    assert(counts(0) + counts(1) + counts(2) <= LIMIT)
#endif
  fi
}

/* --- scripts: each is one atomic step, as in Redis */

/* What lua/includes/grant.lua writes, after room was found. */
inline grant(i) {
  assert(learning == 0);
  /* After a loss nothing is granted before those who can be reached have said what they run. */
  assert(told(0) && told(1) && told(2));
  left[i] = PROV;
  queued[i] = false
}

#define room (live < LIMIT + forged)

/* lua/includes/dispatch.lua; any order, so also the fair one. */
inline dispatch() {
  do
  :: learning == 0 && room && queued[0] -> grant(0); wake[0] = true
  :: learning == 0 && room && queued[1] -> grant(1); wake[1] = true
  :: learning == 0 && room && queued[2] -> grant(2); wake[2] = true
  :: else -> break
  od;
  skip
}

/* Whoever is told again that it was granted has the time of a new grant. */
inline lengthen(i) {
  if
#ifndef FIRST_EXPIRY
  :: left[i] < PROV -> left[i] = PROV
#endif
  :: else
  fi
}

/* Whoever is told that it waits knows older messages by their grant number. */
inline outdate(i) {
#ifndef STALE_WAKE
  wake[i] = false
#else
  skip
#endif
}

inline acquire_script(i) {
  dispatch();
  if
  :: left[i] > 0 -> lengthen(i); answer[i] = GRANTED
  :: left[i] == 0 && learning > 0 -> answer[i] = REFUSED
  :: left[i] == 0 && learning == 0 && queued[i] -> outdate(i); answer[i] = QUEUED
  :: left[i] == 0 && learning == 0 && !queued[i] && room -> grant(i); answer[i] = GRANTED
  :: left[i] == 0 && learning == 0 && !queued[i] && !room -> outdate(i); queued[i] = true; answer[i] = QUEUED
  :: left[i] == 0 && learning == 0 && !queued[i] && !room -> answer[i] = REFUSED
  fi
}

inline renew(leases, i) {
  if
#ifdef UPDATE_ONLY
  :: (leases & BIT(i)) && left[i] > 0 -> left[i] = TTL
#else
  :: (leases & BIT(i)) -> left[i] = TTL
#endif
  :: else
  fi
}

inline tick_script(leases) {
  d_step { renew(leases, 0); renew(leases, 1); renew(leases, 2) };
  dispatch()
}

/* lua/includes/whereabouts.lua: what became of those who stood in line. */
inline whereabouts(g, i) {
  if
  :: (stands[g] & BIT(i)) && left[i] > 0 -> lengthen(i); answer[i] = GRANTED; stands[g] = stands[g] - BIT(i)
  :: (stands[g] & BIT(i)) && queued[i] -> outdate(i)
  :: (stands[g] & BIT(i)) && left[i] == 0 && !queued[i] -> answer[i] = GONE; stands[g] = stands[g] - BIT(i)
  :: else
  fi
}

inline leave(leases, i) {
  if
  :: (leases & BIT(i)) ->
#ifdef BY_COUNT
    if
    :: left[i] == 0 && !queued[i] && forged < 2 -> forged++
    :: else
    fi;
#endif
    left[i] = 0;
    queued[i] = false
  :: else
  fi
}

inline release_script(leases) {
  d_step { leave(leases, 0); leave(leases, 1); leave(leases, 2) };
  dispatch()
}

/* What has arrived at Redis runs there; nothing arrives from, or at, a gateway that is cut off. */
proctype Scripts_of_a_request(byte i) {
  do
  :: atomic { asks[i] && !cut[OWNER(i)] -> acquire_script(i); asks[i] = false }
  :: atomic { /* once more, later */
      asks[i] && !cut[OWNER(i)] && faults > 0 -> faults--; strayed = true; acquire_script(i)
    }
  :: atomic { old_release[i] && !cut[OWNER(i)] -> release_script(BIT(i)); old_release[i] = false }
  od
}

proctype Scripts_of_a_ticker(byte g) {
  do
  :: atomic {
      call[g] == TICK_SENT && !cut[g] ->
      tick_script(facts[g]);
      d_step { whereabouts(g, 0); whereabouts(g, 1); whereabouts(g, 2) };
      call[g] = TICK_ANSWERED
    }
  :: atomic { call[g] == RELEASE_SENT && !cut[g] -> release_script(facts[g]); call[g] = RELEASE_ANSWERED }
  :: atomic { old_tick[g] > 0 && !cut[g] -> tick_script(old_tick[g]); old_tick[g] = 0 }
  od
}

/* lua/reap.lua: what has run out counts for nobody already, so it only hands on. */
proctype Reaper() {
  do
  :: atomic { queued[0] || queued[1] || queued[2] -> dispatch() }
  od
}

/* --- gateways */

inline send_acquire(i) {
  asks[i] = true;
  slow[i] = false;
  answer[i] = 0
}

/* A grant is in the caller's hands: the engine is called. */
inline begin(i) {
  wake[i] = false;
  answer[i] = 0;
  again[i] = false;
  slow[i] = false;
  assert(left[i] > 0 || flushed);
  st[i] = RUNNING;
  nobody_exceeds()
}

/* Is there time for a tick to renew it? */
#ifdef NO_RECHECK
#define in_time(i) true
#else
#define in_time(i) (sure[i] > TICK)
#endif

inline ask(i) {
  st[i] = ASKING;
  sure[i] = PROV;
  send_acquire(i)
}

inline stop_asking(i, next) {
  st[i] = next;
  sure[i] = 0;
  answer[i] = 0;
  again[i] = false;
  slow[i] = false
}

proctype Request(byte i) {
  do
  :: d_step { st[i] == NEW && mine(i) -> ask(i) }

  :: d_step { st[i] == ASKING && mine(i) && !cut[OWNER(i)] && answer[i] == GRANTED ->
      if
      :: in_time(i) -> begin(i)
      :: else -> ask(i) /* it was held up: whether the lease still lives is asked again */
      fi
    }
  :: d_step {
      st[i] == ASKING && mine(i) && !cut[OWNER(i)] && answer[i] == QUEUED ->
      st[i] = WAITING; answer[i] = 0; slow[i] = false; again[i] = false
    }
  :: d_step { st[i] == ASKING && mine(i) && !cut[OWNER(i)] && answer[i] == REFUSED -> stop_asking(i, DONE) }
  /* No answer in time: once more under the same id, then it is released blind. */
  :: d_step {
      st[i] == ASKING && mine(i) && slow[i] && (cut[OWNER(i)] || (!asks[i] && answer[i] == 0)) ->
      strayed = strayed || asks[i];
      if
      :: again[i] -> stop_asking(i, CLOSING)
      :: !again[i] ->
        again[i] = true;
        ask(i)
      fi
    }

  /* In line: granted by somebody else's script, forgotten with the line, or out of patience. */
  :: d_step {
      st[i] == WAITING && mine(i) && !cut[OWNER(i)] && wake[i] ->
#ifdef WAKE_DEADLINE
      sure[i] = PROV - TICK;
#endif
      if
      :: in_time(i) -> begin(i)
      :: else -> wake[i] = false /* the tick says whether it still lives */
      fi
    }
  :: d_step { st[i] == WAITING && mine(i) -> stop_asking(i, CLOSING) }
  :: d_step { wake[i] -> wake[i] = false } /* a message may get lost, or come to nobody */

  /* The stream ends by itself, or at its deadline. */
  :: d_step { st[i] == RUNNING && mine(i) -> stop_asking(i, CLOSING) }
  od
}

/* Under "stop" a stream ends before its deadline, not as soon as somebody notices that it has passed. */
#ifdef LATE_WATCH
#define SOON 0
#else
#define SOON 1
#endif
#define overdue(i, g) (OWNER(i) == g && st[i] == RUNNING && sure[i] <= SOON)
#ifdef STOP
#define to_stop(g) (overdue(0, g) || overdue(1, g) || overdue(2, g))
#else
#define to_stop(g) false
#endif

inline put(list, i, state, g) {
  if
  :: OWNER(i) == g && st[i] == state -> list = list | BIT(i)
  :: else
  fi
}

/* The answer to a tick: what it carried lives for a ttl from before the call, and who stands in line stood
   there when it was sent. */
inline hear_tick(g, i) {
  if
#if defined(STOP) && !defined(REVIVE)
  :: (facts[g] & BIT(i)) && overdue(i, g) -> skip /* its place may be somebody else's by now */
  :: (facts[g] & BIT(i)) && st[i] == RUNNING && !overdue(i, g) ->
#else
  :: (facts[g] & BIT(i)) && st[i] == RUNNING ->
#endif
#ifdef LATE_DEADLINE
    sure[i] = TTL
#else
    sure[i] = since[g]
#endif
  :: OWNER(i) == g && st[i] == WAITING && ((stands[g] & BIT(i)) || answer[i] == GRANTED) ->
    sure[i] = (since[g] > TTL - PROV -> since[g] - (TTL - PROV) : 0);
    if
    :: answer[i] == GRANTED && in_time(i) -> begin(i)
    :: else -> answer[i] = 0 /* in line, or held up: the next tick says */
    fi
  :: OWNER(i) == g && st[i] == WAITING && answer[i] == GONE -> ask(i)
  :: else
  fi
}

inline hear_release(g, i) {
  if
  :: (facts[g] & BIT(i)) && st[i] == CLOSING ->
    st[i] = DONE;
    assert(left[i] == 0 || strayed)
  :: else
  fi
}

inline unsaid(g, i) {
  if
  :: st[i] == WAITING && OWNER(i) == g -> answer[i] = 0
  :: else
  fi
}

inline end_call(g) {
  call[g] = IDLE;
  unsaid(g, 0); unsaid(g, 1); unsaid(g, 2);
  facts[g] = 0;
  stands[g] = 0;
  since[g] = 0;
  late[g] = false
}

#define closing(i, g) (OWNER(i) == g && st[i] == CLOSING)
#define outbox(g) (closing(0, g) || closing(1, g) || closing(2, g))
proctype Ticker(byte g) {
  do
  /* Strictly in order: the outbox first. A blind release waits for the end of its acquire's last attempt. */
  :: d_step {
      acts(g) && call[g] == IDLE && outbox(g) ->
      put(facts[g], 0, CLOSING, g); put(facts[g], 1, CLOSING, g); put(facts[g], 2, CLOSING, g);
      call[g] = RELEASE_SENT
    }
  :: d_step {
      acts(g) && call[g] == IDLE && !outbox(g) && due[g] == 0 && !to_stop(g) ->
      put(facts[g], 0, RUNNING, g); put(facts[g], 1, RUNNING, g); put(facts[g], 2, RUNNING, g);
      put(stands[g], 0, WAITING, g); put(stands[g], 1, WAITING, g); put(stands[g], 2, WAITING, g);
      since[g] = TTL;
      due[g] = TICK;
      call[g] = TICK_SENT
    }
  :: d_step {
      acts(g) && !cut[g] && call[g] == TICK_ANSWERED ->
      hear_tick(g, 0); hear_tick(g, 1); hear_tick(g, 2);
      end_call(g)
    }
  :: d_step {
      acts(g) && !cut[g] && call[g] == RELEASE_ANSWERED ->
      hear_release(g, 0); hear_release(g, 1); hear_release(g, 2);
      end_call(g)
    }
#ifdef NO_ORDER
  /* Planted: a release on a connection of its own does not wait for the tick that is under way. */
  :: d_step {
      acts(g) && !cut[g] && call[g] == TICK_SENT && outbox(g) ->
      old_tick[g] = facts[g];
      end_call(g)
    }
#endif
  /* No answer in time: the call may be lost, may have been carried out, or may still arrive. */
  :: atomic {
      acts(g) && late[g] && cut[g] && (call[g] == TICK_SENT || call[g] == TICK_ANSWERED) ->
      if
      :: call[g] == TICK_SENT && facts[g] > 0 -> old_tick[g] = facts[g]; strayed = true
      :: true
      fi;
      due[g] = 0;
      end_call(g)
    }
  :: atomic {
      acts(g) && late[g] && cut[g] && (call[g] == RELEASE_SENT || call[g] == RELEASE_ANSWERED) ->
      if
      :: call[g] == RELEASE_SENT ->
        if
        :: facts[g] & 1 -> old_release[0] = true
        :: else
        fi;
        if
        :: facts[g] & 2 -> old_release[1] = true
        :: else
        fi;
        if
        :: facts[g] & 4 -> old_release[2] = true
        :: else
        fi
      :: true
      fi;
      end_call(g)
    }
  od
}

/* --- time */

#define request_waits(i) (mine(i) && st[i] == ASKING && (slow[i] || !cut[OWNER(i)]))
#ifdef LATE_WATCH
#define watch_waits(g) false
#else
#define watch_waits(g) to_stop(g)
#endif
#define ticker_waits(g) \
  (acts(g) && (watch_waits(g) || (call[g] == IDLE -> due[g] == 0 || outbox(g) : late[g] || !cut[g])))

inline age(n) {
  if
  :: n > 0 -> n--
  :: else
  fi
}

inline age_request(i) {
  if
  :: left[i] == 1 && st[i] == RUNNING -> lapsed[i] = true
  :: else
  fi;
#ifndef NO_EXPIRY
  age(left[i]);
#endif
  age(sure[i]);
  slow[i] = (st[i] == ASKING);
  /* The deadline rule: while its gateway may be sure of it, a lease is a member. */
  assert(!(st[i] == RUNNING && sure[i] > 0 && left[i] == 0) || flushed)
}

inline age_ticker(g) {
  age(since[g]);
  age(due[g]);
  late[g] = (call[g] != IDLE);
  woken[g] = false
}

proctype Clock() {
  do
  :: d_step {
      !(request_waits(0) || request_waits(1) || request_waits(2) || ticker_waits(0) || ticker_waits(1)) ->
      age(learning);
      age_request(0); age_request(1); age_request(2);
      age_ticker(0); age_ticker(1);
      nobody_exceeds()
    }
  od
}

/* --- faults */

inline die(g, i) {
  if
  :: OWNER(i) == g && st[i] != NEW -> stop_asking(i, DONE); lapsed[i] = false
  :: OWNER(i) == g && st[i] == NEW -> st[i] = DONE
  :: else
  fi
}

proctype Fate(byte g) {
  do
  :: d_step {
      faults > 0 && alive[g] -> faults--;
      alive[g] = false;
      die(g, 0); die(g, 1); die(g, 2);
      end_call(g);
      due[g] = 0
    }
  :: d_step { faults > 0 && acts(g) -> faults--; paused[g] = true; apart[g] = flushed }
  :: d_step { paused[g] -> paused[g] = false; woken[g] = true }
  :: d_step { faults > 0 && alive[g] && !cut[g] -> faults--; cut[g] = true; apart[g] = flushed }
  :: d_step { cut[g] -> cut[g] = false }
  od
}

proctype Loss() {
  do
  :: d_step {
      faults > 0 && !flushed -> faults--;
      flushed = true;
      apart[0] = paused[0] || cut[0];
      apart[1] = paused[1] || cut[1];
      left[0] = 0; left[1] = 0; left[2] = 0;
      queued[0] = false; queued[1] = false; queued[2] = false;
      learning = LEARN
    }
  od
}

init {
  atomic {
#ifdef ONE_EACH
    st[0] = DONE;
#endif
    run Request(0); run Request(1); run Request(2);
    run Ticker(0); run Ticker(1);
    run Scripts_of_a_request(0); run Scripts_of_a_request(1); run Scripts_of_a_request(2);
    run Scripts_of_a_ticker(0); run Scripts_of_a_ticker(1);
    run Reaper();
    run Fate(0); run Fate(1);
    run Loss();
    run Clock()
  }
}

#ifdef LIVENESS
/* Promise 2: what died holds no place for good. */
ltl a_place_comes_back { [] (!alive[1] -> <> [] (left[2] == 0)) }
#endif
