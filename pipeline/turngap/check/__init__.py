"""`turngap check`: two agents played alternately, and a verdict on whether one is slower."""
