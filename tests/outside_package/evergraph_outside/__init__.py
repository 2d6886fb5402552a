"""What another package adds to Evergraph."""
