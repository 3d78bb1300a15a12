"""The `tenure` command: starts the parts, shows what they hold, says what to fix."""
