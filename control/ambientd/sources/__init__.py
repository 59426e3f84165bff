"""Where objects come from: an API server, a folder of manifests, a recording. All emit the same events. Must not know
what is made of them."""
