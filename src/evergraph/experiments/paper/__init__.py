"""The paper's experiment: its Table 1, its figures, and the same under better settings."""
