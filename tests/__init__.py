"""What Tenure promises, as tests; README.md says what each folder proves."""
