"""The wire protocols that a served agent answers, one module each."""
