"""What every other folder builds on: sparse matrices, parameters by name, capabilities, settings, shortcuts."""
