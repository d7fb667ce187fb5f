"""The YAML config: its sections and fields, their checks, and their error messages. Never imports Paddle."""
