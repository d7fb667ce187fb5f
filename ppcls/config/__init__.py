"""The YAML: its fields, their bounds, and the errors a user sees. Never imports Paddle."""
