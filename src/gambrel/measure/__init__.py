"""Real runs: ceilings of this machine, models timed and profiled, traces, servers, and records of them all."""
