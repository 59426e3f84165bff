"""The certificate authority: who may hold which certificate, and the certificates. Reads of the index only who runs
where, now; must not know how a caller proved who it is."""
