/* One request in its gateway: it asks, waits, runs at the engine, and ends. acquirer.py, permit.py */

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
