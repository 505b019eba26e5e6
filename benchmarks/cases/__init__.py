"""Cases: a file each, which ends in `CASE`. `benchmarks.case.NAMES` lists them."""
