"""Timing of products and what is made of it: cases, the clock, tables, result files and plots.

Nothing that a program calls needs these modules. The command line and the scripts of benchmarks/ do.
"""
