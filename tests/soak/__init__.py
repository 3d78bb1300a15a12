"""The soak: mixed load under random faults for a set time, and a ledger in which every line is explained."""
