"""Reports of processes: what went wrong for users of other loaders' worker processes, tried on ours."""
