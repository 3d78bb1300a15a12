/* lua/: each script is one atomic step, as in Redis. */

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
