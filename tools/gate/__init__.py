"""What action.yml does, apart from turngap itself: inputs, versions, the check, the comment."""
