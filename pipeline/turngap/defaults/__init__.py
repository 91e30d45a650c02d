"""What a repository says for turngap's commands and tests: `turngap.toml`, or `[tool.turngap]`."""
