"""Results of the benchmarks: schema, tables, charts and comparison."""
