"""ambientd: a control plane for Istio ambient mode. ARCHITECTURE.md is the map; app.py puts the parts together."""
