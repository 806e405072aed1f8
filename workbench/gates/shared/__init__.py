"""What several gates use: A1 B1 B2 A2 cohorts of decode runs, intervals, identity runs, clauses, tables and figures."""
