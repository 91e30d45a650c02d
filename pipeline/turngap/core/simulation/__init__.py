"""Many calls on a fleet of inference servers, in virtual time. Pure: seeded, no clock, no I/O."""
