"""Machine and compiler: processes, memory, signals, and XLA's options and faults."""
