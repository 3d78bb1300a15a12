/* Time: it passes for all at once, and not while somebody who can act has something to do that is due. */

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
