"""Tenure: leased permits for LLM inference, shared by many gateways through one Redis."""
