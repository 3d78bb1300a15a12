"""The reaper: takes back the leases of holders that died and repairs what disagrees, for ever.

Correctness never waits for it: every script settles first. It shortens the time until a lost
place is usable again, keeps idle pools tidy and says aloud what was taken from whom.
"""
