"""Configuration and wiring: the only place that knows concrete classes and the real clock."""
