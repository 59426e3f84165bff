"""What the outside may see: readiness, the state as JSON, metrics, logs. Formats only; must not change or derive
anything."""
