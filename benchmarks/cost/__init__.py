"""What one more node costs, for Railwright and for three other ways to the same state."""
