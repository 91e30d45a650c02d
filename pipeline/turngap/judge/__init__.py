"""`turngap judge`: whether stored replies were right, by their sound or by a model."""
