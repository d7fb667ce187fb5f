"""Results of benchmarks: schema, tables, charts, comparison, page."""
