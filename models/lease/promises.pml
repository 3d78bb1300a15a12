/* The promises, as assertions. `grant`, `begin`, `hear_release` and `age_request` have one more each. */

/* What nobody in the system knows. */
bool lapsed[NL]; /* its lease ran out while it ran */
bool flushed;
bool apart[NG];  /* since Redis lost its data it could not be reached at some time */

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
