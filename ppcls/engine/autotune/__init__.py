"""Before a long run: measures, in other processes, which way to execute its steps is fastest."""
