/* FAULTS of these happen, at any moment. */

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
