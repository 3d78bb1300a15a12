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

#include "lease/state.pml"
#include "lease/promises.pml"
#include "lease/scripts.pml"
#include "lease/request.pml"
#include "lease/ticker.pml"
#include "lease/time.pml"
#include "lease/faults.pml"

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
