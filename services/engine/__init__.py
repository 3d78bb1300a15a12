"""The simulated engine: a small, faithful stand-in for an OpenAI-compatible inference server."""
