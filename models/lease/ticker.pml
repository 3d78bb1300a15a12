/* A gateway's ticker: one call at a time, the outbox first. ticker.py, lane.py, renewal.py */


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
