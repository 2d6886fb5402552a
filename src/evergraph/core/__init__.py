"""The basis of all other folders: sparse matrices, parameters by name, capabilities, settings, shortcuts."""
