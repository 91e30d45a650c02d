"""Steps of action.yml around turngap itself: inputs, versions, the check, the comment."""
