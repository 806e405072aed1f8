"""A/B comparisons in cohorts of four arms A1 B1 B2 A2: rules that make a cohort invalid, and the verdict of a series."""
