"""The wire: the messages that ztunnels read and the certificate service they call (`*.proto` beside this file).

The modules are written by `hack/generate` and must not be edited by hand. This package must not import `ambientd`: it
is what a client of the server would share with it.
"""
