"""`ambientctl`, the operator's tool: a simulated ztunnel, and answers about what is served. Must not import the
server."""
