"""What ``override`` is made of: how products are found in a program, and what takes their place."""
