"""State: a run is cut, saved, and goes on elsewhere; it must give what it would have given."""
