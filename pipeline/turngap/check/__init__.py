"""`turngap check`: two agents played in turns, and a verdict on whether one of them is slower."""
