"""The delta protocol to ztunnels: a pure state machine per stream, and the gRPC service around it."""
