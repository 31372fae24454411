//! Benchmarks. Each compares ways of doing a thing in one run on one server: ratios and counts, not times.
