"""What every object means to a ztunnel: the graph, then one module per subject. Synchronous and deterministic: no I/O,
no clock, no task of its own. Must not know where events come from or who is listening."""
