"""One sequence of commits, many readers: views of the index's outputs, frames, and rounds in the order that is safe.
Synchronous; long work is a job that is done in steps. Must not know gRPC, streams' states or the clock."""
