"""Products of groups of rows, each with weights of its own: ``ragged_dot`` and its kin."""
