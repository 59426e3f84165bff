"""The one client of the API server: configuration, credentials, requests, throttling (operations.md 4). Reflectors
share it with everybody who writes. The official package `kubernetes` is imported here and nowhere else. Must not know
what is done with the objects."""
